"""Choosing the next token: greedy, or a draw after temperature, top-k, top-p and min-p.

Every parameter is a tensor, and a filter that is off costs nothing at run time, so one executable
serves all of them. Thresholds are found by bisection: XLA sorts a vocabulary slowly on CPU.
"""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_xla.backend import float_bits

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


class Filters(NamedTuple):
    """What tokens are drawn among: a value for all rows, or `[B, 1]`, one each."""

    temperature: Any  # float32 above 0
    top_k: Any  # int32; 0 is off
    top_p: Any  # float32; 1 is off
    min_p: Any  # float32; 0 is off
    typical_p: Any  # float32; 1 is off
    epsilon_cutoff: Any  # float32; 0 is off
    eta_cutoff: Any  # float32; 0 is off


def filter_logits(logits, filters: Filters, least=1, room: int = 1):
    """Divide by the temperature, and turn off what the filters drop, in the order that Hugging Face does.

    Args:
        logits: `[B, V]` float32.
        filters: What to keep.
        least: Scalar int32, tokens that every filter keeps (beams need one that does not end).
        room: The most that `least` may be.

    Returns:
        `[B, V]` float32.
    """

    def likeliest(x):
        """Which tokens every filter keeps, `[B, V]` bool."""
        if _is_one(least):
            return x >= ops.max(x, axis=-1, keepdims=True)
        return x >= ops.take(ops.top_k(x, min(room, x.shape[-1]))[0], least - 1, axis=-1)[:, None]

    def apply(x, wanted, keep):
        return ops.cond(ops.any(wanted), lambda: ops.where(wanted, keep(x), x), lambda: x)

    f = filters
    x = ops.where(logits > FORBIDDEN / 2, logits / f.temperature, FORBIDDEN)
    x = apply(x, f.top_k > 0, lambda x: keep_top_k(x, ops.maximum(f.top_k, least)))
    x = apply(x, f.top_p < 1, lambda x: keep_top_p(x, f.top_p, least))
    x = apply(x, f.min_p > 0, lambda x: keep_min_p(x, f.min_p, likeliest(x)))
    x = apply(x, f.typical_p < 1, lambda x: keep_typical(x, f.typical_p, least))
    x = apply(x, f.epsilon_cutoff > 0, lambda x: keep_above_epsilon(x, f.epsilon_cutoff, likeliest(x)))
    return apply(x, f.eta_cutoff > 0, lambda x: keep_above_eta(x, f.eta_cutoff, likeliest(x)))


def weights(x):
    """Probabilities up to a factor: `[B, V]`, 0 where `x` is off."""
    return ops.where(x > FORBIDDEN / 2, ops.exp(x - ops.max(x, axis=-1, keepdims=True)), 0.0)


def keep_top_k(x, k):
    """`[B, V]` with all but the `k` largest values of each row (and ties with the last) off."""
    return _keep_largest(x, x, lambda above: _count(above) >= k)


def keep_top_p(x, p, least=1):
    """`[B, V]` with all but the fewest largest logits that hold probability `p` off (Holtzman et al., 2020).

    Of equal logits, of which some are enough, the last ones stay: Hugging Face takes a sum in rising order.
    """
    kept = _keep_mass(x, x, p, least)
    smallest = ops.min(ops.where(kept > FORBIDDEN / 2, kept, np.inf), axis=-1, keepdims=True)
    ties = kept == smallest  # [B, V]
    return ops.cond(ops.any(_count(ties) > 1), lambda: _without_surplus(kept, ties, p, x, least), lambda: kept)


def keep_typical(x, p, least=1):
    """`[B, V]` with all off but the fewest that hold probability `p` and are nearest to the expected surprise.

    Meister et al., "Locally typical sampling", 2022.
    """
    logprobs, entropy = _logprobs(x)
    return _keep_mass(x, ops.where(x > FORBIDDEN / 2, -ops.abs(-logprobs - entropy), FORBIDDEN), p, least)


def keep_min_p(x, p, sure):
    """`[B, V]` with all off that are less than `p` times as likely as the most likely, but for the `sure` ones."""
    return ops.where(ops.logical_or(weights(x) >= p, sure), x, FORBIDDEN)


def keep_above_epsilon(x, epsilon, sure):
    """`[B, V]` with all off that are less likely than `epsilon`, but for the `sure` ones (Hewitt et al., 2022)."""
    return ops.where(ops.logical_or(_logprobs(x)[0] >= ops.log(epsilon), sure), x, FORBIDDEN)


def keep_above_eta(x, epsilon, sure):
    """`[B, V]` with all off that are less likely than `epsilon`, and than a bound that falls with the entropy.

    Hewitt et al., "Truncation sampling as language model desmoothing", 2022.
    """
    logprobs, entropy = _logprobs(x)
    bound = ops.minimum(ops.log(epsilon), 0.5 * ops.log(epsilon) - entropy)
    return ops.where(ops.logical_or(logprobs >= bound, sure), x, FORBIDDEN)


def _logprobs(x):
    """Log-probabilities `[B, V]`, FORBIDDEN where `x` is, and the entropy `[B, 1]` in nats."""
    w = weights(x)
    total = ops.sum(w, axis=-1, keepdims=True)
    logprobs = ops.where(x > FORBIDDEN / 2, x - ops.max(x, axis=-1, keepdims=True) - ops.log(total), FORBIDDEN)
    return logprobs, -ops.sum(ops.where(w > 0, logprobs, 0.0) * w, axis=-1, keepdims=True) / total


def _keep_mass(x, order, p, least):
    """Turn all off but the fewest that hold probability `p`, those first that are first in an order `[B, V]`."""
    return _keep_largest(x, order, _holds(x, p, least))


def _holds(x, p, least):
    """Tells for each row whether tokens `[B, V]` bool hold probability `p`, and are `least` at least: `[B, 1]`."""
    w = weights(x)
    wanted = ops.maximum(p * ops.sum(w, axis=-1, keepdims=True), 1e-30)

    def enough(above):
        mass = ops.sum(ops.where(above, w, 0.0), axis=-1, keepdims=True)
        return mass >= wanted if _is_one(least) else ops.logical_and(mass >= wanted, _count(above) >= least)

    return enough


def _without_surplus(kept, ties, p, x, least):
    """Turn off the first of equal logits, `ties` [B, V] bool, as long as what stays holds probability `p` of `x`."""
    enough, size = _holds(x, p, least), x.shape[-1]
    places = ops.arange(size, dtype="int32")[None]  # [1, V]
    bits = (size - 1).bit_length()

    def stays(first):
        return ops.logical_and(kept > FORBIDDEN / 2, ops.logical_or(places >= first, ops.logical_not(ties)))

    def set_bit(i, first):
        later = first + ops.left_shift(_int(1), bits - 1 - i)
        return ops.where(enough(stays(later)), later, first)

    first = ops.fori_loop(0, bits, set_bit, ops.zeros((x.shape[0], 1), "int32"))
    return ops.where(stays(first), kept, FORBIDDEN)


def _count(which):
    return ops.sum(ops.cast(which, "int32"), axis=-1, keepdims=True)


def _is_one(least) -> bool:
    """Whether it is known while tracing that each filter keeps enough: the most likely token always stays."""
    return isinstance(least, int) and least == 1


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
    index = ops.sum(ops.cast(cumulative <= target[:, None], "int32"), axis=-1)
    index = ops.minimum(index, weights.shape[-1] - 1)
    weight = ops.take_along_axis(weights, index[:, None], axis=-1)[:, 0]
    start = ops.take_along_axis(cumulative, index[:, None], axis=-1)[:, 0] - weight
    rest = (target - start) / ops.maximum(weight, 1e-30)
    return index, ops.clip(rest, 0.0, below_one)


def _keep_largest(x, order, enough):
    """Turn off what is below the largest threshold of `order [B, V]` at which `enough(above [B, V] bool)` still holds.

    `above` is what is not below it. The threshold is found bit by bit, so that no two values are too close.
    """
    order = _order(order)

    def set_bit(i, threshold):
        higher = threshold + ops.left_shift(_int(1), 31 - i)  # the first addition wraps: from the least number to 0
        return ops.where(enough(order >= higher), higher, threshold)

    least = ops.full((x.shape[0], 1), -(2**31), "int32")
    return ops.where(order >= ops.fori_loop(0, 32, set_bit, least), x, FORBIDDEN)


def _order(x):
    """Numbers `[B, V]` int32 in the order of `x` float32: its bits, those of negative values turned around."""
    bits = float_bits(ops.where(x == 0, 0.0, x))  # one zero, not two
    return ops.where(bits < 0, ops.bitwise_xor(bits, _int(2**31 - 1)), bits)


def _int(value: int):
    return ops.convert_to_tensor(value, "int32")
