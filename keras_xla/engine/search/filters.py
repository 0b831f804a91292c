"""What tokens are drawn among: temperature, top-k, top-p, min-p and their kin.

Every parameter is a tensor, and a filter that is off costs nothing at run time, so one executable serves all of them.
A loop runs the filters in turn, so that code which several share is compiled once, which shortens the first call.
Thresholds are found by bisection, at first among the few tokens that are likely: XLA sorts a vocabulary slowly on CPU.
"""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_xla.backend import float_bits
from keras_xla.engine.search.samplers import FORBIDDEN, weights

# B batch, V vocabulary (padded to whole groups), G likely groups, N their tokens or all of V, S stages


class Filters(NamedTuple):
    """What tokens are drawn among: a value for all rows, or `[B, 1]`, one each."""

    temperature: Any  # float32 above 0
    top_k: Any  # int32; 0 is off
    top_p: Any  # float32; 1 is off
    min_p: Any  # float32; 0 is off
    typical_p: Any  # float32; 1 is off
    epsilon_cutoff: Any  # float32; 0 is off
    eta_cutoff: Any  # float32; 0 is off


# The stages, in the order in which Hugging Face filters. _TIES: of equal logits, the last that top-p has kept, it drops
# those that are not needed.
_TOP_K, _TOP_P, _TIES, _MIN_P, _TYPICAL, _EPSILON, _ETA = range(7)
_BRANCHES = (0, 0, 0, 1, 0, 2, 2)  # what a stage runs: `_keep_first`, min-p, or `_is_above`
_GROUP, _GROUPS = 32, 128  # tokens of a group, and how many of the groups are searched at first


def filter_logits(logits, filters: Filters, least=1, room: int = 1, rows=True):
    """Divide by the temperature, and turn off what the filters drop, in the order that Hugging Face does.

    - Top-k keeps the `k` largest, and whatever equals the last of them.
    - Top-p drops all but the fewest largest that hold probability `p` (Holtzman et al., 2020). Of equal ones, of which
      some are enough, the last ones stay: Hugging Face takes a sum in rising order.
    - Min-p drops what is less than `p` times as likely as the most likely.
    - Typical-p drops all but the fewest that hold probability `p` and are nearest to the expected surprise (Meister et
      al., "Locally typical sampling", 2022).
    - Epsilon drops what is less likely than it, eta what is also less likely than a bound that falls with the entropy
      (Hewitt et al., "Truncation sampling as language model desmoothing", 2022).

    Args:
        logits: `[B, V]` float32.
        filters: What to keep.
        least: Scalar int32, tokens that every filter keeps (beams need one that does not end).
        room: The most that `least` may be.
        rows: `[B, 1]` bool, which rows are to be filtered.

    Returns:
        `[B, V]` float32, FORBIDDEN where a token is dropped.
    """
    f, (batch, size) = filters, logits.shape
    by_stage = f.top_k, f.top_p, f.top_p, f.min_p, f.typical_p, f.epsilon_cutoff, f.eta_cutoff
    levels = ops.stack([ops.broadcast_to(ops.cast(level, "float32"), (batch, 1)) for level in by_stage])  # [S, B, 1]
    off_at_one = np.isin(np.arange(len(by_stage)), (_TOP_P, _TIES, _TYPICAL))[:, None, None]
    wanted = ops.logical_and(ops.where(off_at_one, levels < 1, levels > 0), rows)  # [S, B, 1]
    runs = ops.any(wanted, axis=(1, 2))  # [S]

    x = ops.where(logits > FORBIDDEN / 2, logits / f.temperature, FORBIDDEN)
    likely = None
    if size >= 2 * _GROUP * _GROUPS:
        x = ops.pad(x, ((0, 0), (0, -size % _GROUP)), constant_values=FORBIDDEN)
        searches = ops.any(runs[:_MIN_P])
        likely = _Likely(*ops.cond(searches, lambda: _likely_groups(x), lambda: _no_groups(batch)))

    stages = ops.arange(len(by_stage), dtype="int32")

    def after(i, tied):
        """The stage that runs behind stage `i`; S for none."""
        to_run = ops.logical_and(runs, ops.logical_or(stages != _TIES, tied))
        return ops.min(ops.where(ops.logical_and(to_run, stages > i), stages, len(by_stage)))

    def stage(i, x, needed):
        level, wants = ops.take(levels, i, axis=0), ops.take(wanted, i, axis=0)
        no = ops.zeros((), "bool")
        kept, needed, tied = ops.switch(
            ops.take(ops.convert_to_tensor(_BRANCHES, "int32"), i),
            (
                lambda: _keep_first(i, level, wants, x, needed, likely, least),
                lambda: (ops.logical_or(weights(x) >= level, _always_kept(x, least, room)), needed, no),
                lambda: (ops.logical_or(_is_above(i == _ETA, level, x), _always_kept(x, least, room)), needed, no),
            ),
        )
        kept = ops.logical_or(kept, ops.logical_not(wants))
        return after(i, tied), ops.where(kept, x, FORBIDDEN), needed

    begin = after(_int(-1), ops.zeros((), "bool")), x, ops.zeros((batch, 1), "float32")
    return ops.while_loop(lambda i, *_: i < len(by_stage), stage, begin)[1][:, :size]


class _Likely(NamedTuple):
    """The groups of tokens with the largest logits. All tokens of other groups are at or below a bound."""

    groups: Any  # [B, G] int32
    bound: Any  # [B, 1] float32

    def of(self, x):
        """Of `x [B, V]` that of the groups, and its places in the vocabulary: `[B, N]` each."""
        batch, size = x.shape
        rows = ops.arange(batch, dtype="int32")[:, None] * (size // _GROUP)
        values = ops.take(ops.reshape(x, (-1, _GROUP)), self.groups + rows, axis=0)  # [B, G, members]
        places = self.groups[:, :, None] * _GROUP + ops.arange(_GROUP, dtype="int32")
        return ops.reshape(values, (batch, -1)), ops.reshape(places, (batch, -1))


def _likely_groups(x):
    """See `_Likely`."""
    # `largest[:, -1:]` would make XLA on CPU sort them all.
    largest, groups = ops.top_k(ops.max(ops.reshape(x, (x.shape[0], -1, _GROUP)), axis=-1), _GROUPS)
    return ops.cast(groups, "int32"), ops.min(largest, axis=-1, keepdims=True)


def _no_groups(batch: int):
    return ops.zeros((batch, _GROUPS), "int32"), ops.zeros((batch, 1), "float32")


def _keep_first(i, level, wants, x, needed, likely: _Likely | None, least):
    """A stage that keeps what comes first in some order, as many or as much as there has to be.

    The end of what is kept is looked for among the likely tokens. An end below their bound, or for ties at it, may not
    be the right one. Then all tokens are searched.

    Args:
        i: Scalar int32, the stage.
        level: `[B, 1]` float32, the filter's parameter.
        wants: `[B, 1]` bool, which rows want the filter.
        x: `[B, V]` float32, what is left.
        needed: `[B, 1]` float32, how much weight top-p had to keep, for the stage of ties.
        likely: The likely tokens, None in a small vocabulary.
        least: See `filter_logits`.

    Returns:
        What it keeps, `[B, V]` bool; how much that had to be, `[B, 1]` float32, in tokens or in weights; and whether
        the smallest that it keeps may be equal in some row.
    """
    counts, ties, typical = i == _TOP_K, i == _TIES, i == _TYPICAL
    known = ops.where(counts, ops.maximum(level, ops.cast(least, "float32")), needed)
    needed = ops.cond(
        ops.logical_or(counts, ties),
        lambda: known,
        lambda: ops.maximum(level * ops.sum(weights(x), axis=-1, keepdims=True), 1e-30),
    )
    all_places = ops.arange(x.shape[1], dtype="int32")[None]

    def order(values, x, places, smallest):
        return ops.where(ties, _places_of_ties(x, places, smallest), _order(values))  # [B, N] int32

    def search(values, x, places):
        smallest = _smallest(x)
        shares = ops.where(counts, 1.0, weights(x))
        return _threshold(order(values, x, places, smallest), shares, needed, least), smallest

    def are_tied(x):
        equal = _count(x == _smallest(x)) > 1
        return ops.any(ops.logical_and(equal, wants))

    def among_all(*found):
        values = ops.cond(typical, lambda: _nearness(x), lambda: x)
        ends = search(values, x, all_places)
        if found:  # sums over all round in another way: what a row keeps must not depend on the rest of the batch
            exact, *ends_among_few = found
            ends = [ops.where(exact, *pair) for pair in zip(ends_among_few, ends, strict=True)]
        end, smallest = ends
        kept = order(values, x, all_places, smallest) >= end
        return kept, are_tied(ops.where(kept, x, FORBIDDEN))

    if likely is None:
        kept, tied = among_all()
        return kept, needed, tied

    few, places = likely.of(x)
    end, smallest = search(few, few, places)
    bound = _order(likely.bound)
    exact = ops.where(ties, smallest > likely.bound, end >= bound)
    exact = ops.logical_or(exact, likely.bound <= FORBIDDEN / 2)  # all other tokens are off
    exact = ops.logical_and(exact, ops.logical_not(typical))

    def among_few():
        kept = order(few, few, places, smallest) >= end
        beyond = ops.any(ops.logical_and(end == bound, wants))  # other tokens may equal the bound
        tied = ops.logical_or(beyond, are_tied(ops.where(kept, few, FORBIDDEN)))
        return order(x, x, all_places, smallest) >= end, tied

    settled = ops.all(ops.logical_or(exact, ops.logical_not(wants)))
    kept, tied = ops.cond(settled, among_few, lambda: among_all(exact, end, smallest))
    return kept, needed, tied


def _threshold(order, shares, needed, least):
    """The largest number `[B, 1]` such that what is not below it in `order [B, N]` int32 is enough.

    It is enough if its `shares [B, N]` add up to what is `needed [B, 1]`, and there are `least` of it. The number is
    found bit by bit, so that no two values are too close.
    """

    def set_bit(i, threshold):
        higher = threshold + ops.left_shift(_int(1), 31 - i)  # the first addition wraps: from the least number to 0
        above = order >= higher
        enough = ops.sum(ops.where(above, shares, 0.0), axis=-1, keepdims=True) >= needed
        if not _is_one(least):
            enough = ops.logical_and(enough, _count(above) >= least)
        return ops.where(enough, higher, threshold)

    return ops.fori_loop(0, 32, set_bit, ops.full((order.shape[0], 1), -(2**31), "int32"))


def _order(x):
    """Numbers int32 in the order of `x` float32: its bits, those of negative values turned around."""
    bits = float_bits(ops.where(x == 0, 0.0, x))  # one zero, not two
    return ops.where(bits < 0, ops.bitwise_xor(bits, _int(2**31 - 1)), bits)


def _nearness(x):
    """How near to the expected surprise each is, `[B, V]` float32: 0 or less."""
    logprobs, entropy = _logprobs(x)
    return ops.where(x > FORBIDDEN / 2, -ops.abs(-logprobs - entropy), FORBIDDEN)


def _places_of_ties(x, places, smallest):
    """Numbers `[B, N]` int32: the places of the smallest that are left; more for larger ones, less for those off."""
    return ops.where(x == smallest, places, ops.where(x > FORBIDDEN / 2, _int(2**31 - 1), _int(-1)))


def _smallest(x):
    """The smallest that is left, `[B, 1]`."""
    return ops.min(ops.where(x > FORBIDDEN / 2, x, np.inf), axis=-1, keepdims=True)


def _is_above(falls, level, x):
    """What is likelier than a `level [B, 1]`, or also than a bound that falls with the entropy: `[B, V]` bool."""
    logprobs, entropy = _logprobs(x)
    log = ops.log(level)
    return logprobs >= ops.where(falls, ops.minimum(log, 0.5 * log - entropy), log)


def _always_kept(x, least, room):
    """The `least` tokens that every filter keeps, `[B, V]` bool."""
    if _is_one(least):
        return x >= ops.max(x, axis=-1, keepdims=True)
    return x >= ops.take(ops.top_k(x, min(room, x.shape[-1]))[0], least - 1, axis=-1)[:, None]


def _logprobs(x):
    """Log-probabilities `[B, V]`, FORBIDDEN where `x` is, and the entropy `[B, 1]` in nats."""
    w = weights(x)
    total = ops.sum(w, axis=-1, keepdims=True)
    logprobs = ops.where(x > FORBIDDEN / 2, x - ops.max(x, axis=-1, keepdims=True) - ops.log(total), FORBIDDEN)
    return logprobs, -ops.sum(ops.where(w > 0, logprobs, 0.0) * w, axis=-1, keepdims=True) / total


def _count(which):
    return ops.cast(ops.sum(ops.cast(which, "int32"), axis=-1, keepdims=True), "int32")


def _is_one(least) -> bool:
    """Whether it is known while tracing that each filter keeps enough: the most likely token always stays."""
    return isinstance(least, int) and least == 1


def _int(value: int):
    return ops.convert_to_tensor(value, "int32")
