"""The key-value cache: two arrays a layer, written in place inside the decode loop.

Batch and heads are one axis, as in the matrix products that read the arrays: with any reshape between, XLA
on CPU updates one copy for the products and another for the loop.
"""

from keras import ops

from keras_xla.models.interface import View

FEW_ROWS = 8  # that are written one by one where each has a slot of its own; more would make a large graph

# B batch, N batch times key-value heads, T slots, S new tokens, D head size


def empty(rows: int, slots: int, head_dim: int, dtype: str):
    """Keys and values of one layer, `[N, T, D]` each, all zero."""
    return ops.zeros((rows, slots, head_dim), dtype), ops.zeros((rows, slots, head_dim), dtype)


def write(cache, keys, values, slot):
    """Put `keys` and `values [N, S, D]` at `slot`: one slice update each for the whole batch, or for each of `[B]`."""
    return _write(cache[0], keys, slot), _write(cache[1], values, slot)


def _write(old, new, slot):
    if not len(getattr(slot, "shape", ())):
        return ops.slice_update(old, (0, slot, 0), new)
    heads = new.shape[0] // slot.shape[0]
    if slot.shape[0] > FEW_ROWS:
        place = ops.arange(old.shape[1], dtype="int32")[None] - ops.repeat(slot, heads)[:, None]  # [N, T]
        there = ops.logical_and(place >= 0, place < new.shape[1])
        if new.shape[1] > 1:
            new = ops.take_along_axis(new, ops.clip(place, 0, new.shape[1] - 1)[..., None], axis=1)  # [N, T, D]
        return ops.where(there[..., None], new, old)
    for row in range(slot.shape[0]):
        first = row * heads
        old = ops.slice_update(old, (first, slot[row], 0), new[first : first + heads])
    return old


def within(view: View, window: int | None):
    """The attention mask `[B, 1, S, T]` bool of a view; tokens see `window` positions, their own included."""
    seen = view.seen
    if window is not None:
        near = view.slot_positions[:, None, :] > view.positions[:, :, None] - window
        seen = ops.logical_and(seen, near)
    return seen[:, None]
