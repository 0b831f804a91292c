"""The key-value cache: two arrays a layer, written in place inside the decode loop.

Batch and heads are one axis, as in the matrix products that read the arrays: with any reshape between, XLA
on CPU updates one copy for the products and another for the loop.
"""

from keras import ops

# B batch, N batch times key-value heads, T slots, S new tokens, D head size


def empty(rows: int, slots: int, head_dim: int, dtype: str):
    """Keys and values of one layer, `[N, T, D]` each, all zero."""
    return ops.zeros((rows, slots, head_dim), dtype), ops.zeros((rows, slots, head_dim), dtype)


def write(cache, keys, values, slot):
    """Put `keys` and `values [N, S, D]` at `slot`; one slice update each for the whole batch."""
    return (
        ops.slice_update(cache[0], (0, slot, 0), keys),
        ops.slice_update(cache[1], (0, slot, 0), values),
    )


def visible(queries, slots: int, starts, window: int | None = None):
    """Which slots each query sees, `[B, 1, S, T]` bool.

    Args:
        queries: `[S]` int32, the queries' slots.
        slots: T.
        starts: `[B]` int32, each row's first real slot.
        window: How many slots back a query sees, itself included; None for all.
    """
    slot = ops.arange(slots, dtype="int32")[None, None, :]
    query = queries[None, :, None]
    seen = ops.logical_and(slot <= query, slot >= starts[:, None, None])
    if window is not None:
        seen = ops.logical_and(seen, slot > query - window)
    return seen[:, None]
