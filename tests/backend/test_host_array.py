"""Arrays on whose memory a tensor can stand, and which tensors do."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_xla import backend
from keras_xla.backend.host_array import ALIGNMENT, may_hold_a_tensor, new_array
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint

DTYPES = ["float32", "float16", "bfloat16", "int8", "int32", "float64"]
on_tensorflow = keras.backend.backend() == "tensorflow"


@given(
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
    order=st.sampled_from("CF"),
    zeros=st.booleans(),
)
def test_a_new_array_begins_where_a_tensor_may(shape, dtype, order, zeros):
    made = new_array(shape, dtype, order, zeros)
    assert made.shape == shape and made.dtype.name == dtype and made.flags.writeable
    assert made.size == 0 or made.ctypes.data % ALIGNMENT == 0
    assert made.flags.c_contiguous if order == "C" else made.flags.f_contiguous
    if zeros:
        assert not made.any()


def test_other_arrays_hold_none():
    whole = new_array((8, 8), "float32")
    assert may_hold_a_tensor(whole) and may_hold_a_tensor(whole.T.T)
    read_only = whole.view()
    read_only.flags.writeable = False
    unaligned = whole.reshape(-1)[1:]
    for other in (unaligned, whole.T, whole[:, :4], read_only, whole[:0], whole.view(">f4"), [1.0], np.float32(1)):
        assert not may_hold_a_tensor(other)


@pytest.mark.parametrize("dtype", DTYPES[:5])
def test_values_are_taken_over_whatever_holds_them(dtype):
    values = np.arange(-32, 32).reshape(8, 8)
    aligned = new_array((8, 8), dtype)
    aligned[...] = values
    for held in (
        aligned,
        aligned.T,
        aligned[1:],
        values.astype(aligned.dtype),
    ):
        expected = np.array(held, "float32")
        made = backend.taken_over(held, dtype)
        assert keras.backend.standardize_dtype(made.dtype) == dtype
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(keras.ops.cast(made, "float32")), expected)


def test_other_dtypes_are_cast():
    aligned = new_array((3,), "float64")
    aligned[...] = 1.5
    made = backend.taken_over(aligned, "float32")
    assert keras.backend.standardize_dtype(made.dtype) == "float32" and float(made[0]) == 1.5


@pytest.mark.skipif(not on_tensorflow or not backend.on_cpu(), reason="TensorFlow's memory on a CPU")
def test_what_is_loaded_is_not_copied(checkpoint, monkeypatch):
    import tensorflow as tf

    begun, from_dlpack = [], tf.experimental.dlpack.from_dlpack

    def counted(capsule):
        begun.append(from_dlpack(capsule))
        return begun[-1]

    monkeypatch.setattr(tf.experimental.dlpack, "from_dlpack", counted)
    model = load_model(open_checkpoint(checkpoint("gpt2")))
    stands_on = {np.asarray(tensor).ctypes.data for tensor in begun}
    assert {np.asarray(variable.value.value()).ctypes.data for variable in model.variables} == stands_on


@pytest.mark.skipif(not on_tensorflow or not backend.on_cpu(), reason="TensorFlow's memory on a CPU")
@pytest.mark.parametrize("dtype", DTYPES[:5])
def test_nothing_is_copied_and_a_variable_may_change_later(dtype):
    import tensorflow as tf

    aligned = new_array((64, 64), dtype, zeros=True)
    made = backend.taken_over(aligned, dtype)
    assert np.asarray(made).ctypes.data == aligned.ctypes.data
    variable = tf.Variable(made)
    del made, aligned
    variable.assign_add(tf.ones((64, 64), dtype))
    assert np.asarray(variable.value()).astype("float32").sum() == 64 * 64
