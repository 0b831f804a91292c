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
    ids = keras.Input((), dtype="int32")
    embedded = keras.layers.Dense(2)(keras.layers.Embedding(9, 4)(ids))
    assert rowwise_in_inference(keras.Model(ids, embedded))
    tower = keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(9, 4), keras.layers.Dense(2)])
    assert rowwise_in_inference(keras.Model(ids, tower(ids)))


def centered(x):
    return x - keras.ops.mean(x, axis=0, keepdims=True)


class InKerasSource(keras.layers.Layer):
    """A layer that Keras does not export, though it is written where Keras' own are."""

    __module__ = "keras.src.layers.some_test"

    def call(self, x):
        return centered(x)


class ModelInKerasSource(keras.Model):
    """A model of that kind, such as Keras' own tests have; it knows no outputs."""

    __module__ = "keras.src.trainers.some_test"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def call(self, x):
        return centered(self.dense(x))


MIXED = {
    "layer in Keras' source": lambda: keras.Sequential([keras.Input((4,)), InKerasSource()]),
    "model in Keras' source": ModelInKerasSource,
    "operation": lambda: functional(centered),
    "operation inside": lambda: keras.Sequential([keras.Input((4,)), functional(centered)]),
    "lambda": lambda: keras.Sequential([keras.Input((4,)), keras.layers.Lambda(centered, output_shape=(4,))]),
    "axis of the rows": lambda: functional(keras.layers.Softmax(axis=0)),
    "axis of the rows from behind": lambda: functional(keras.layers.UnitNormalization(axis=-2)),
    "twice as many rows": lambda: functional(lambda x: keras.layers.Concatenate(axis=0)([x, x])),
    "last axis that is of the rows": lambda: keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1), keras.layers.Reshape(()), keras.layers.Softmax()]
    ),
    "axis of the rows alone": lambda: keras.Sequential([keras.Input(()), keras.layers.Softmax()]),
    "axis of the rows alone, by name": lambda: keras.Sequential([keras.Input(()), keras.layers.Activation("softmax")]),
    "axis of the rows alone, inside": lambda: keras.Sequential(
        [keras.Input(()), keras.Sequential([keras.Input(()), keras.layers.Softmax()])]
    ),
    "all axes": lambda: functional(keras.layers.Softmax(axis=None)),
    "activation": lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation=centered)]),
}


@pytest.mark.parametrize("name", MIXED)
def test_others_may_mix_rows_and_predict_gives_what_plain_keras_gives(name):
    """Rows added to the last batch would change the mean over it."""
    model, x = MIXED[name](), np.random.default_rng(0).normal(size=(11, 4)).astype("float32")
    x = x[:, 0] if "alone" in name else x
    assert not rowwise_in_inference(model)
    expected = model.predict(x, batch_size=8, verbose=0)
    compile(model, "sgd", "mse", jit_compile=True)
    np.testing.assert_allclose(model.predict(x, batch_size=8, verbose=0), expected, rtol=1e-5, atol=1e-6)


def test_a_stateful_layer_refuses_a_smaller_batch_as_in_plain_keras():
    errors = []
    for compiled in (keras.Model.compile, compile):
        model = keras.Sequential([keras.Input(batch_shape=(8, 5, 3)), keras.layers.LSTM(4, stateful=True)])
        assert not rowwise_in_inference(model)
        compiled(model, "sgd", "mse", jit_compile=True)
        with pytest.raises(Exception) as error:
            model.predict(np.ones((11, 5, 3), "float32"), batch_size=8, verbose=0)
        errors.append(error.type)
    assert errors[0] is errors[1]


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_a_model_in_keras_source_trains_on_a_smaller_last_batch_as_in_plain_keras(jit_compile):
    x, y = (np.random.default_rng(seed).normal(size=(11, 4)).astype("float32") for seed in (1, 2))
    losses = {}
    for ours in (False, True):
        keras.utils.set_random_seed(0)
        model = ModelInKerasSource()
        if ours:
            compile(model, "sgd", "mse", jit_compile=jit_compile)
        else:
            model.compile("sgd", "mse")
        losses[ours] = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
