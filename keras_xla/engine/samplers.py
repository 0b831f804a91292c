"""Choosing the next token: greedy, or a draw after temperature, top-k, top-p and min-p.

Every parameter is a tensor, and a filter that is off costs nothing at run time, so one executable
serves all of them. Thresholds are found by bisection: XLA sorts a vocabulary slowly on CPU.
"""

from keras import ops

# B batch, V vocabulary, C columns of a V that is folded in two

OFF = -1e9  # a logit that is out of the question; finite, so that no NaN can come of it
_BISECTIONS = 40
_COLUMNS = 256


def greedy(logits):
    """The most likely token of each row: `[B, V]` -> `[B]` int32."""
    return ops.cast(ops.argmax(logits, axis=-1), "int32")


def sample(logits, uniform, temperature, top_k, top_p, min_p):
    """Draw one token a row, filtering in the order that Hugging Face does.

    Args:
        logits: `[B, V]` float32.
        uniform: `[B]` float32 in [0, 1).
        temperature: Scalar float32 above 0.
        top_k: Scalar int32; 0 is off.
        top_p: Scalar float32; 1 is off.
        min_p: Scalar float32; 0 is off.

    Returns:
        `[B]` int32.
    """
    x = ops.where(logits > OFF / 2, logits / temperature, OFF)
    x = ops.cond(top_k > 0, lambda: keep_top_k(x, top_k), lambda: x)
    y = ops.cond(top_p < 1, lambda: keep_top_p(x, top_p), lambda: x)
    best = ops.max(y, axis=-1, keepdims=True)
    weights = ops.where(y > OFF / 2, ops.exp(y - best), 0.0)
    weights = ops.where(weights >= min_p, weights, 0.0)
    return draw(weights, uniform)


def keep_top_k(x, k):
    """`[B, V]` with all but the `k` largest values of each row (and ties with the last) off."""

    def enough(threshold):
        return ops.sum(ops.cast(x >= threshold, "int32"), axis=-1, keepdims=True) >= k

    return _keep_largest(x, enough)


def keep_top_p(x, p):
    """`[B, V]` with all but the fewest largest logits that hold probability `p` off (Holtzman et al., 2020)."""
    weights = ops.where(x > OFF / 2, ops.exp(x - ops.max(x, axis=-1, keepdims=True)), 0.0)
    wanted = p * ops.sum(weights, axis=-1, keepdims=True)

    def enough(threshold):
        return ops.sum(ops.where(x >= threshold, weights, 0.0), axis=-1, keepdims=True) >= wanted

    return _keep_largest(x, enough)


def draw(weights, uniform):
    """A token in proportion to its weight, by inverting the cumulative sum: `[B, V]`, `[B]` -> `[B]` int32.

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
    return row * _COLUMNS + column


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


def _keep_largest(x, enough):
    """Turn off what is below the largest threshold for which `enough(threshold [B, 1])` still holds."""
    real = x > OFF / 2
    high = ops.max(x, axis=-1, keepdims=True)
    low = ops.min(ops.where(real, x, high), axis=-1, keepdims=True)

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) * 0.5
        fits = enough(middle)
        return ops.where(fits, middle, low), ops.where(fits, high, middle)

    # `high` itself may be enough already: the most likely token alone.
    low = ops.where(enough(high), high, low)
    low, _ = ops.fori_loop(0, _BISECTIONS, halve, (low, high))
    return ops.where(x >= low, x, OFF)
