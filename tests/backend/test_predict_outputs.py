"""The outputs of many batches become what Keras would return, without being kept on the way."""

import gc
import weakref

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

if keras.backend.backend() != "tensorflow":
    pytest.skip("on JAX Keras' own functions run, and join their outputs", allow_module_level=True)

import tensorflow as tf

from keras_xla.backend.tensorflow.runner.predict_outputs import Gathered, joined
from keras_xla.training.compile import compile

MADE = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")


def gathered(parts, batches=None):
    made = Gathered(batches)
    for part in parts:
        made.add(part, 1)
    return made.result()


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    batches=st.none() | st.floats(0.1, 8),
    dtype=st.sampled_from(["float32", "bfloat16", "int64", "bool", "string"]),
    inner=st.sampled_from([(), (3,), (2, 0), (1, 2)]),
)
def test_whatever_is_expected_the_outputs_are_those_that_came(sizes, batches, dtype, inner):
    count = sum(sizes) * int(np.prod(inner))
    values = tf.reshape(tf.range(count), (sum(sizes), *inner))
    values = tf.strings.as_string(values) if dtype == "string" else tf.cast(values, dtype)
    made = gathered(tf.split(values, sizes), batches)
    assert made.dtype == values.numpy().dtype and made.flags.writeable
    np.testing.assert_array_equal(made, values.numpy())


def test_groups_of_batches():
    made = Gathered(batches=2.5)  # of 8 rows
    for part, ran in ((MADE[:16], 2), (MADE[16:], 1)):
        made.add({"a": tf.constant(part), "b": (tf.constant(part[:, 0]),)}, ran)
    result = made.result()
    np.testing.assert_array_equal(result["a"], MADE)
    np.testing.assert_array_equal(result["b"][0], MADE[:, 0])
    assert result["a"].base is None


class WithNone(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return {"a": self.dense(x), "b": None}


@pytest.mark.parametrize("rows", [8, 20])
def test_none_among_the_outputs_is_the_error_of_plain_keras(rows):
    told = []
    for compile_ in (keras.Model.compile, compile):
        model = WithNone()
        compile_(model, "sgd", "mse")
        for data in (MADE[:rows], tf.data.Dataset.from_tensor_slices(MADE[:rows]).batch(8)) * 2:
            with pytest.raises(ValueError) as caught:
                model.predict(data, batch_size=None if isinstance(data, tf.data.Dataset) else 8, verbose=0)
            told.append(str(caught.value))
    assert len(set(told)) == 1


@pytest.mark.parametrize(("batches", "kept"), [(5, 0), (None, 5)])
def test_only_outputs_of_an_unknown_number_of_batches_are_kept(batches, kept):
    made, parts = Gathered(batches), []
    for part in np.split(MADE, 5):
        tensor = tf.constant(part)
        parts.append(weakref.ref(tensor))
        made.add(tensor, 1)
        del tensor
    gc.collect()
    assert sum(part() is not None for part in parts) == kept
    np.testing.assert_array_equal(made.result(), MADE)


def test_no_more_memory_than_the_rows_of_the_last_batch_need():
    parts = [tf.constant(MADE[:8]), tf.constant(MADE[8:16]), tf.constant(MADE[16:])]
    assert gathered(parts, batches=20 / 8).base is None
    assert len(gathered(parts, batches=3).base) == 24


class Cut(keras.layers.Layer):
    """The first rows along some axes, as many as the first number of the batch says."""

    def __init__(self, axes):
        super().__init__()
        self.axes = axes

    def call(self, x):
        n = tf.cast(x[0, 0, 0, 0], "int32")
        for axis in self.axes:
            x = tf.gather(x, tf.range(n), axis=axis)
        return x


@pytest.mark.filterwarnings("ignore:The structure of")
@pytest.mark.parametrize("data", ["arrays", "dataset"])
@pytest.mark.parametrize("axes", [(1,), (2,), (3,), (1, 2), (1, 3), (0, 2), (0,), ()], ids=repr)
def test_axes_that_differ_from_batch_to_batch_are_ragged_as_in_keras(axes, data):
    x = np.arange(6 * 4 * 4 * 4).reshape(24, 4, 4, 1).repeat(4, 3).astype("float32")
    x[:, 0, 0, 0] = np.repeat([3, 2, 4, 1, 3, 3], 4)
    x = tf.data.Dataset.from_tensor_slices(x).batch(4) if data == "dataset" else x
    results = []
    for compile_ in (keras.Model.compile, compile):
        model = keras.Sequential([Cut(axes)])
        compile_(model)
        results.append(model.predict(x, batch_size=None if data == "dataset" else 4, verbose=0))
    expected, made = results
    assert type(made) is type(expected) and made.shape.__class__ is expected.shape.__class__
    if isinstance(expected, tf.RaggedTensor):
        assert made.shape == expected.shape and made.dtype == expected.dtype
        assert made.to_list() == expected.to_list()
    else:
        np.testing.assert_array_equal(made, expected)


def test_sparse_outputs_and_scalars():
    dense = [tf.constant([[1, 0], [0, 2]]), tf.constant([[0, 3]])]
    sparse = gathered(map(tf.sparse.from_dense, dense), batches=2)
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), [[1, 0], [0, 2], [0, 3]])
    np.testing.assert_array_equal(gathered([tf.constant(1.0), tf.constant(2.0)], batches=2), [1, 2])
    assert joined([dense[0]]) is dense[0]


def test_batches_that_run_together_must_be_alike_as_in_plain_keras():
    """`steps_per_execution` batches are joined at once, where nothing becomes ragged."""

    def batches():
        yield from (np.ones((2, 3), "int32"), np.ones((2, length), "int32"))

    for length in (3, 5):
        data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec((None, None), tf.int32))
        made = []
        for compile_ in (keras.Model.compile, compile):
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(9, 2)])
            compile_(model, "sgd", "mse", steps_per_execution=2)
            try:
                made.append(model.predict(data, verbose=0))
            except (ValueError, tf.errors.InvalidArgumentError) as error:
                made.append("must" if "imension" in str(error) else error)
        if length == 3:
            np.testing.assert_allclose(*made, rtol=1e-6)
        else:
            assert made == ["must", "must"]
