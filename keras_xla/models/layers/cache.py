"""The key-value cache: two arrays a layer, written in place inside the decode loop.

Batch and heads are one axis, as in the matrix products that read the arrays: with any reshape between, XLA
on CPU updates one copy for the products and another for the loop.
"""

from keras import ops
from keras.backend import standardize_dtype

from keras_xla import backend
from keras_xla.models.interface import View

# B batch, N batch times key-value heads, T slots, S new tokens, D head size


def empty(rows: int, slots: int, head_dim: int, dtype: str):
    """Keys and values of one layer, `[N, T, D]` each, all zero."""
    return ops.zeros((rows, slots, head_dim), dtype), ops.zeros((rows, slots, head_dim), dtype)


def write(cache, keys, values, slot):
    """Put `keys` and `values [N, S, D]` at `slot`: a scalar for the whole batch, or one for each row, `[B]`."""
    return _write(cache[0], keys, slot), _write(cache[1], values, slot)


def _write(old, new, slot):
    if not len(getattr(slot, "shape", ())):
        return ops.slice_update(old, (0, slot, 0), new)
    rows, length, size = new.shape
    if standardize_dtype(new.dtype) == "bfloat16" and backend.on_cpu():  # else all of the cache is float32 in between
        return ops.view(_write(ops.view(old, "int16"), ops.view(new, "int16"), slot), "bfloat16")
    slots = ops.repeat(slot, rows // slot.shape[0])[:, None] + ops.arange(length, dtype="int32")  # [N, S]
    row = ops.broadcast_to(ops.arange(rows, dtype="int32")[:, None], (rows, length))
    at = ops.reshape(ops.stack([row, slots], axis=-1), (rows * length, 2))
    return ops.scatter_update(old, at, ops.reshape(new, (rows * length, size)))


def within(view: View, window: int | None):
    """The attention mask `[B, 1, S, T]` bool of a view; tokens see `window` positions, their own included."""
    seen = view.seen
    if window is not None:
        near = view.slot_positions[:, None, :] > view.positions[:, :, None] - window
        seen = ops.logical_and(seen, near)
    return seen[:, None]
