"""The arithmetic of positions: rotary frequencies and their scalings, sinusoids, and T5's buckets of distances."""

import math

import numpy as np
from keras import ops

# "dynamic" changes nothing for texts of up to `max_position_embeddings` tokens, and there are no others here.
KNOWN_SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn")


def inverse_frequencies(rope: dict, head_dim: int) -> tuple[tuple[float, ...], float]:
    """Angles a position for each of the `head_dim / 2` pairs, and the factor on cosine and sine.

    Args:
        rope: `rope_theta`, `rope_type` (one of `KNOWN_SCALINGS`) and that type's parameters, as
            in a Hugging Face config.
        head_dim: Size of a head; even.

    Raises:
        ValueError: for a `rope_type` that is not known here.
    """
    kind = rope.get("rope_type", "default")
    if kind not in KNOWN_SCALINGS:
        raise ValueError(f"rope_type={kind!r} is not supported here; expected one of {', '.join(KNOWN_SCALINGS)}")
    base = float(rope["rope_theta"])
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain = 1.0 / np.power(np.float32(base), exponents, dtype=np.float32)
    scaled, factor = plain, 1.0
    if kind == "linear":
        scaled = plain / np.float32(rope["factor"])
    elif kind == "llama3":
        scaled = _llama3(plain, rope)
    elif kind == "yarn":
        scaled, factor = _yarn(plain, rope, base, head_dim)
    if factors := rope.get("frequency_factors"):  # GGUF stores llama3's result as divisors
        scaled = scaled / np.asarray(factors, np.float32)
    return tuple(float(f) for f in scaled), factor


def _llama3(plain: np.ndarray, rope: dict) -> np.ndarray:
    """Llama 3.1: low frequencies slowed by `factor`, high ones kept, a ramp between."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * plain / (2 * np.pi)
    with np.errstate(divide="ignore"):  # if they are equal, there is a step in place of the ramp
        ramp = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return ((1 - ramp) * plain / rope["factor"] + ramp * plain).astype(np.float32)


def _yarn(plain: np.ndarray, rope: dict, base: float, head_dim: int) -> tuple[np.ndarray, float]:
    """YaRN, https://arxiv.org/abs/2309.00071."""
    original, factor = rope["original_max_position_embeddings"], rope["factor"]

    def pair_with(turns):
        """The (fractional) pair that turns so many times over the original context."""
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_with(rope.get("beta_fast") or 32), pair_with(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    scaled = plain / factor * ramp + plain * (1 - ramp)

    def temperature(scale, weight=1.0):
        return 0.1 * weight * math.log(scale) + 1.0 if scale > 1 else 1.0

    attention = rope.get("attention_factor")
    if attention is None:
        weight, weight_all = rope.get("mscale"), rope.get("mscale_all_dim")
        if weight and weight_all:
            attention = temperature(factor, weight) / temperature(factor, weight_all)
        else:
            attention = temperature(factor)
    return scaled.astype(np.float32), float(attention)


def rotary_tables(positions, frequencies: tuple[float, ...], factor: float):
    """Cosines and sines `[B, 1, S, D / 2]` float32 of the `positions [B, S]`."""
    angles = ops.cast(positions, "float32")[:, None, :, None] * ops.convert_to_tensor(frequencies, "float32")
    return ops.cos(angles) * factor, ops.sin(angles) * factor


def rotate(x, tables):
    """Rotate the heads `x [B, H, S, D]`: pair `i` is `(x[i], x[i + D / 2])`."""
    cos, sin = (ops.cast(t, x.dtype) for t in tables)
    first, second = ops.split(x, 2, axis=-1)
    return ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def sinusoids(positions: int, size: int) -> np.ndarray:
    """Sines of every position in the first half of the columns and cosines in the second, as Marian has them.

    Returns:
        `(positions, size)` float32.
    """
    exponents = np.arange(0, size, 2) / size
    angles = np.arange(positions)[:, None] / np.power(10000.0, exponents)
    return np.concatenate([np.sin(angles), np.cos(angles[:, : size // 2])], axis=1).astype(np.float32)


def distance_buckets(distances: np.ndarray, buckets: int, max_distance: int, both_ways: bool) -> np.ndarray:
    """T5's bucket of each distance: exact ones for near tokens, logarithmic ones up to `max_distance`.

    Args:
        distances: Position of the token that is seen, less that of the one that sees it.
        buckets: Buckets there are.
        max_distance: From here on all share the last one.
        both_ways: Whether later tokens are seen too; they have half of the buckets then.

    Returns:
        Int32 array of the shape of `distances`.
    """
    first = np.zeros_like(distances)
    if both_ways:
        buckets //= 2
        first = np.where(distances > 0, buckets, 0)
        away = np.abs(distances)
    else:
        away = np.maximum(-distances, 0)
    exact = buckets // 2
    # In float32 and in this order, as T5 was trained: at powers of two the result is on the edge of a bucket.
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    steps = ratio / np.float32(math.log(max_distance / exact)) * np.float32(buckets - exact)
    far = np.minimum(exact + steps.astype(np.int32), buckets - 1)
    return (first + np.where(away < exact, away, far)).astype(np.int32)
