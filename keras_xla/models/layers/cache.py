"""The key-value cache: two arrays a layer, written in place inside the decode loop.

Batch and heads are one axis, as in the matrix products that read the arrays: with any reshape between, XLA
on CPU updates one copy for the products and another for the loop.

Keys are `[N, T, D]`, as values are, or transposed: `[N, D, T]`. Where several queries read each key at a step (those of
a group of heads, or of beams), XLA on CPU transposes keys `[N, T, D]` first, and this takes longer than the product.
Where a single one does, it need not; and a new key is written faster to `[N, T, D]`. So on a CPU, `Attention` keeps
keys transposed if its heads form groups (how many beams there will be, it does not know), and `CrossAttention` always.
"""

from keras import ops
from keras.backend import standardize_dtype

from keras_xla import backend
from keras_xla.backend.slices import update_slice
from keras_xla.models.interface import View

# B batch, N batch times key-value heads, T slots, S new tokens, D head size


def empty(rows: int, slots: int, head_dim: int, dtype: str, keys_transposed: bool = False):
    """Keys and values of one layer, all zero: `[N, T, D]` each, or keys `[N, D, T]` if transposed."""
    keys = (rows, head_dim, slots) if keys_transposed else (rows, slots, head_dim)
    return ops.zeros(keys, dtype), ops.zeros((rows, slots, head_dim), dtype)


def write(cache, keys, values, slot, keys_transposed: bool = False):
    """Put `keys` and `values`, `[N, S, D]` each, at `slot`: a scalar for the whole batch, or one for each row, `[B]`.

    With `keys_transposed`, the keys of the cache are `[N, D, T]`.
    """
    if keys_transposed:
        keys = ops.transpose(keys, (0, 2, 1))
    return _write(cache[0], keys, slot, axis=2 if keys_transposed else 1), _write(cache[1], values, slot, axis=1)


def _write(old, new, slot, axis: int):
    """Put `new` into `old` from `slot` on; `axis` counts the slots."""
    if not len(getattr(slot, "shape", ())):
        return update_slice(old, (0, slot, 0) if axis == 1 else (0, 0, slot), new)
    if standardize_dtype(new.dtype) == "bfloat16" and backend.on_cpu():  # else all of the cache is float32 in between
        return ops.view(_write(ops.view(old, "int16"), ops.view(new, "int16"), slot, axis), "bfloat16")
    rows, shape = new.shape[0], new.shape[: axis + 1]
    slots = ops.repeat(slot, rows // slot.shape[0])[:, None] + ops.arange(new.shape[axis], dtype="int32")  # [N, S]
    row = ops.arange(rows, dtype="int32")[:, None]
    at = [row, slots] if axis == 1 else [row[:, None], ops.arange(shape[1], dtype="int32")[:, None], slots[:, None]]
    at = ops.stack([ops.broadcast_to(each, shape) for each in at], axis=-1)  # [N, S, 2] or [N, D, S, 3]
    return ops.scatter_update(old, ops.reshape(at, (-1, axis + 1)), ops.reshape(new, (-1, *new.shape[axis + 1 :])))


def within(view: View, window: int | None):
    """The attention mask `[B, 1, S, T]` bool of a view; tokens see `window` positions, their own included."""
    seen = view.seen
    if window is not None:
        near = view.slot_positions[:, None, :] > view.positions[:, :, None] - window
        seen = ops.logical_and(seen, near)
    return seen[:, None]
