"""Attention of many queries, one block of slots after the other: the scores of all with all never exist at once.

A maximum and a sum are carried from block to block, as in Milakov and Gimelshein, "Online normalizer calculation for
softmax" (https://arxiv.org/abs/1805.02867). A loop whose length is known when it runs leaves out what nobody sees: the
slots of a cache behind a prompt's end, and those before all windows.
"""

from typing import Any

import keras
from keras import ops

from keras_xla import backend
from keras_xla.backend.slices import slice_at

# B batch, S queries, T slots, C slots of a block
# H key-value heads, G query heads a key-value head, D head size

FEW_QUERIES = 16  # a product for fewer is over before a loop has begun
BLOCK_ON_CPU = 256  # slots: scores of more at once leave its caches
BLOCK_ELSEWHERE = 2048  # the host waits for each turn of a loop


def span(mask: Any, queries: int, slots: int) -> tuple[Any, Any] | None:
    """The slots that attention has to visit, if it is to go over blocks of them.

    Args:
        mask: `[B, 1, 1 or S, T]` bool, which slots a query sees; None for all.
        queries: S.
        slots: T.

    Returns:
        The first of them and the one behind them, scalars int32; None if blocks would not pay.
    """
    if queries < FEW_QUERIES or slots < 2 * _block():
        return None
    if mask is None:
        return ops.zeros((), "int32"), ops.full((), slots, "int32")
    seen, slot = ops.any(mask, axis=(0, 1, 2)), ops.arange(slots, dtype="int32")  # [T]
    first = ops.min(ops.where(seen, slot, slots - 1))  # one block at least, if nobody sees anything
    return first, ops.maximum(ops.max(ops.where(seen, slot, -1)), first) + 1


def scores_of(q, k, keys_transposed: bool):
    """`q [BH, GS, D]` times keys `[BH, T, D]`, or `[BH, D, T]` with `keys_transposed`: `[BH, GS, T]`."""
    return ops.matmul(q, k) if keys_transposed else backend.matmul_transposed(q, k)


def attend_blockwise(q, k, v, mask, bias, scale: float, visited: tuple[Any, Any], keys_transposed: bool = False):
    """What `attention.attend` computes, over some slots alone.

    Args:
        q: `[B, HG, S, D]`.
        k: `[BH, T, D]`, or `[BH, D, T]` with `keys_transposed`.
        v: `[BH, T, D]`.
        mask: Bool, broadcastable to `[B, HG, S, T]`; None for all.
        bias: Added to the scaled scores, broadcastable likewise; or None.
        scale: Factor on the scores.
        visited: These slots: what `span` returned.
        keys_transposed: Whether `k` is transposed, see `cache`.

    Returns:
        `[B, S, HGD]`.
    """
    (batch, heads, length, width), (rows, slots, _) = ops.shape(q), ops.shape(v)
    queries, size = batch * heads // rows * length, _block()
    q = ops.reshape(q, (rows, queries, width)) * scale  # [BH, GS, D]
    first, end = visited
    dtype = keras.backend.standardize_dtype(v.dtype)
    wide = "float64" if dtype == "float64" else "float32"

    def attend_block(slot, highest, total, y):
        begin = ops.minimum(slot, slots - size)  # the last block may reach back to slots that are done
        values = slice_at(v, (0, begin, 0), (rows, size, width))  # [BH, C, D]
        keys = _part(k, begin, size) if keys_transposed else slice_at(k, (0, begin, 0), (rows, size, width))
        scores = ops.cast(scores_of(q, keys, keys_transposed), "float32")
        scores = ops.reshape(scores, (batch, heads, length, size))
        if bias is not None:
            scores = scores + ops.cast(_part(bias, begin, size), "float32")
        if mask is not None:
            scores = ops.where(_part(mask, begin, size), scores, -1e9)  # finite: an unused row sees nothing
        now = ops.maximum(highest, ops.max(scores, axis=-1, keepdims=True))  # [B, HG, S, 1]
        weights = ops.exp(scores - now)
        if slots % size:
            weights = ops.where(begin + ops.arange(size, dtype="int32") >= slot, weights, 0.0)
        fading = ops.exp(highest - now)
        here = ops.sum(weights, axis=-1, keepdims=True)
        total = total * fading + here
        # A sum of values before it is divided needs more range than float16 has.
        divisor = ops.maximum(here, 1.0) if dtype == "float16" else 1.0
        weights = ops.cast(weights / divisor, v.dtype)
        added = ops.cast(ops.matmul(ops.reshape(weights, (rows, queries, size)), values), wide)
        y = y * ops.cast(fading, wide) + ops.reshape(added, (batch, heads, length, width)) * ops.cast(divisor, wide)
        return slot + size, now, total, y

    initial = (
        first // size * size,
        ops.full((batch, heads, length, 1), -1e9, "float32"),
        ops.zeros((batch, heads, length, 1), "float32"),
        ops.zeros((batch, heads, length, width), wide),
    )
    _, _, total, y = ops.while_loop(lambda slot, *_: slot < end, attend_block, initial)
    y = ops.transpose(ops.cast(y / ops.cast(total, wide), v.dtype), (0, 2, 1, 3))
    return ops.reshape(y, (batch, length, heads * width))


def _block() -> int:
    return BLOCK_ON_CPU if backend.on_cpu() else BLOCK_ELSEWHERE


def _part(x, begin, size: int):
    """Slots from `begin` on of what has them in its last axis."""
    return slice_at(x, (*[0] * (len(x.shape) - 1), begin), (*ops.shape(x)[:-1], size))
