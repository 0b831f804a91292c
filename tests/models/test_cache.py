"""The key-value cache: new keys and values stand at each row's own slots, and nothing else changes."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_xla
from keras_xla.models.layers import cache as kv

# B batch, H key-value heads, T slots, S new tokens, D head size

H, T, D = 2, 12, 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("keys_transposed", [False, True])
@pytest.mark.parametrize("slot", [5, [4], [0, 9, 3], [7, 1, 7, 2, 9, 0, 8, 3, 6, 5]])
def test_writes_at_the_slots_of_each_row(slot, keys_transposed, length, dtype):
    rng, batch = np.random.default_rng(0), np.size(slot) if np.ndim(slot) else 3
    old, new = (rng.normal(size=(2, batch * H, n, D)).astype("float32") for n in (T, length))
    wanted = np.array(_rounded(old, dtype)).reshape(2, batch, H, T, D)
    for row, first in enumerate(np.broadcast_to(slot, (batch,))):
        wanted[:, row, :, first : first + length] = _rounded(new, dtype).reshape(2, batch, H, length, D)[:, row]

    def write(old, new, slot):
        keys, values = ops.unstack(ops.cast(old, dtype), 2)
        keys = ops.transpose(keys, (0, 2, 1)) if keys_transposed else keys
        new = ops.unstack(ops.cast(new, dtype), 2)
        keys, values = kv.write((keys, values), *new, slot, keys_transposed)
        return ops.transpose(keys, (0, 2, 1)) if keys_transposed else keys, values

    made = keras_xla.jit(write)(old, new, np.array(slot, "int32"))
    assert {keras.backend.standardize_dtype(each.dtype) for each in made} == {dtype}
    made = np.stack([ops.convert_to_numpy(ops.cast(each, "float32")) for each in made])
    np.testing.assert_array_equal(made.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("keys_transposed", [False, True])
def test_no_other_copy_of_a_bfloat16_cache_is_made(keys_transposed):
    arrays = [np.zeros((3 * H, n, D), "float32") for n in (T, T, 1, 1)]
    keys = (3 * H, D, T) if keys_transposed else (3 * H, T, D)
    arrays[0] = arrays[0].reshape(keys)

    def write(*of):
        return kv.write(of[:2], *of[2:], ops.array([4, 0, 7], "int32"), keys_transposed)

    text = _program(write, arrays, "bfloat16")
    for shape in (keys, (3 * H, T, D)):
        shape = ",".join(map(str, shape))
        assert re.search(rf"bf16\[{shape}\]", text)
        assert not re.search(rf"f32\[{shape}\]", text)


def _program(function, arrays, dtype):
    """XLA's program, as text."""
    tensors = [ops.cast(array, dtype) for array in arrays]
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function).lower(*tensors).compile().as_text()
    import tensorflow as tf

    return tf.function(function, jit_compile=True).experimental_get_compiler_ir(*tensors)("optimized_hlo")


def _rounded(array, dtype):
    return ops.convert_to_numpy(ops.cast(ops.cast(array, dtype), "float32"))
