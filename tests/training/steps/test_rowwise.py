"""Which models may be given rows that nobody asked for."""

import keras
import numpy as np
import pytest

from keras_xla.training.compile import compile
from keras_xla.training.steps.rowwise import rowwise_in_inference


def functional(operation):
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(2)(operation(inputs)))


def test_layers_of_keras_and_operations_on_single_numbers():
    assert rowwise_in_inference(functional(lambda x: keras.ops.tanh(x) * 2 + x))
    assert rowwise_in_inference(keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()]))
    assert rowwise_in_inference(keras.Sequential([keras.Input((4,)), functional(keras.ops.relu)]))


def centered(x):
    return x - keras.ops.mean(x, axis=0, keepdims=True)


MIXED = {
    "operation": lambda: functional(centered),
    "operation inside": lambda: keras.Sequential([keras.Input((4,)), functional(centered)]),
    "lambda": lambda: keras.Sequential([keras.Input((4,)), keras.layers.Lambda(centered, output_shape=(4,))]),
    "activation": lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation=centered)]),
}


@pytest.mark.parametrize("name", MIXED)
def test_others_may_mix_rows_and_predict_gives_what_plain_keras_gives(name):
    """Rows added to the last batch would change the mean over it."""
    model, x = MIXED[name](), np.random.default_rng(0).normal(size=(11, 4)).astype("float32")
    assert not rowwise_in_inference(model)
    expected = model.predict(x, batch_size=8, verbose=0)
    compile(model, "sgd", "mse", jit_compile=True)
    np.testing.assert_allclose(model.predict(x, batch_size=8, verbose=0), expected, rtol=1e-5, atol=1e-6)
