"""The layer in graphs that others trace: what works there, and what is said where it does not."""

import keras
import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

ON_JAX = keras.backend.backend() == "jax"
IDS = np.array([[5, 6, 7], [8, 9, 10]], "int32")


@pytest.fixture(scope="module")
def layer(checkpoint):
    return XLAGenerationLayer(load_model(open_checkpoint(checkpoint("llama-tied-gqa"))), tiny(), max_new_tokens=3)


@pytest.mark.parametrize("inputs", [IDS, np.array(["ab", "c"])], ids=["ids", "texts"])
def test_a_map_of_tf_data(layer, inputs):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(inputs).batch(2)
    if ON_JAX:
        with pytest.raises(TypeError, match=r"nor in a map of tf.data.*pass a dataset to layer.generate"):
            dataset.map(layer)
    else:
        assert len(list(dataset.map(layer))) == 1


class Around(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, ids):
        return self.layer(ids)["sequences"]


def test_a_model_of_ones_own_that_keras_traces_for_its_shapes(layer):
    ids = keras.Input((3,), dtype="int32")
    if ON_JAX:
        with pytest.raises(Exception, match="give the model a compute_output_spec"):
            keras.Model(ids, Around(layer)(ids))
    else:
        assert keras.Model(ids, Around(layer)(ids)).output_shape == (None, 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_symbolic_ids_of_a_float_dtype_are_refused_at_once(layer, dtype):
    with pytest.raises(TypeError, match=r"symbolic ids of dtype .*; expected an integer dtype.*dtype=\"int32\""):
        layer(keras.Input((3,), dtype=dtype))


def test_a_sequential_model_without_an_input_says_what_is_missing(layer):
    with pytest.raises(Exception, match=r"Begin the model with keras.Input\(\(None,\), dtype=\"int32\"\)"):
        keras.Sequential([layer]).predict(IDS, verbose=0)
