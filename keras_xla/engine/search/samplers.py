"""Choosing the next token: the most likely one, or a draw."""

import numpy as np
from keras import ops

# B batch, V vocabulary, C columns of a V that is folded in two

FORBIDDEN = np.float32(-1e30)  # a logit that is out of the question; finite, so that no NaN can come of it
_COLUMNS = 256


def greedy(logits):
    """The most likely token of each row, of equals the first: `[B, V]` -> `[B]` int32.

    It is what `argmax` gives, for which XLA on CPU needs up to twice the time. NaN counts as infinite.
    """
    logits = ops.where(ops.isnan(logits), np.float32(np.inf), logits)  # of which some backends' maximum is not NaN
    highest = ops.max(logits, axis=-1, keepdims=True)
    places = ops.arange(logits.shape[-1], dtype="int32")[None]
    return ops.min(ops.where(logits == highest, places, logits.shape[-1] - 1), axis=-1)


def weights(x):
    """Probabilities up to a factor: `[B, V]`, 0 where `x` is off."""
    return ops.where(x > FORBIDDEN / 2, ops.exp(x - ops.max(x, axis=-1, keepdims=True)), 0.0)


def draw(weights, uniform):
    """A token in proportion to its weight, by inverting the cumulative sum: `[B, V]`, `[B]` -> `[B]` int32.

    Where all weights are 0, or NaN, it is one of the vocabulary all the same.

    The vocabulary is folded into rows of `_COLUMNS`, and the sum is inverted for rows, then within one:
    a cumulative sum over all of it is slow under XLA, and loses digits.
    """
    size = weights.shape[-1]
    rows = -(-size // _COLUMNS)
    folded = ops.pad(weights, ((0, 0), (0, rows * _COLUMNS - size)))
    folded = ops.reshape(folded, (-1, rows, _COLUMNS))  # [B, V / C, C]
    row, rest = _invert(ops.sum(folded, axis=-1), uniform)
    within = ops.take_along_axis(folded, row[:, None, None], axis=1)[:, 0]  # [B, C]
    column, _ = _invert(within, rest)
    return ops.minimum(row * _COLUMNS + column, size - 1)


def _invert(weights, uniform):
    """Index `[B]` whose slice of the cumulative sum of `weights [B, N]` holds `uniform`, and where in it, in [0, 1)."""
    cumulative = ops.cumsum(weights, axis=-1)
    below_one = 1.0 - 2.0**-23  # rounding must not lead past the last weight above 0
    target = ops.minimum(uniform, below_one) * cumulative[:, -1]
    target = ops.minimum(target, cumulative[:, -1] * below_one)
    index = ops.cast(ops.sum(ops.cast(cumulative <= target[:, None], "int32"), axis=-1), "int32")
    index = ops.minimum(index, weights.shape[-1] - 1)
    weight = ops.take_along_axis(weights, index[:, None], axis=-1)[:, 0]
    start = ops.take_along_axis(cumulative, index[:, None], axis=-1)[:, 0] - weight
    rest = (target - start) / ops.maximum(weight, 1e-30)
    return index, ops.clip(rest, 0.0, below_one)
