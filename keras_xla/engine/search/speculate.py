"""The loop over new tokens with guesses: several tokens run through the model at once, and count as far as they agree.

The logits behind each guess are those that a step would have had, and the search chooses from them as it always does.
So what is made does not depend on the guesses, only how often the model runs. (Leviathan et al., "Fast inference from
transformers via speculative decoding", 2023; here the draws are those of plain sampling.)

Rows come on at their own speed: each has its own next slot. Guesses that were wrong leave keys and values behind a
row's last token, which no token sees before they are written anew.

A run is of one of a few kinds: without guesses, with few, or with all. That is decided before each run, from what the
kinds cost and from how many guesses came true.
"""

import functools
from typing import Any, NamedTuple, Protocol

from keras import ops

from keras_xla.backend.slices import slice_at, update_slice
from keras_xla.engine.search.decode import state_at
from keras_xla.engine.search.prompt_lookup import LONGEST
from keras_xla.engine.search.request import Request
from keras_xla.engine.search.sampling import Sampling, SamplingState
from keras_xla.engine.search.while_loop import run_if, while_loop
from keras_xla.models.interface import Cache, ChunkDecoder, View

# B batch, T cache slots, G guesses at most, S tokens that run at once, N sizes of checks, V vocabulary

# Guesses are paid for with what earlier ones have saved, counted in steps: they cannot cost much more than they bring.
# There are two accounts: of the mean row, and of the slowest one, for which a batch waits. Rows get ahead in turns, so
# the second begins with more.
FREE_CHECKS = (2.0, 8.0)  # that can be paid for before anything was saved
LEAST_FREE = (1.0, 2.0)  # and where earlier texts were not worth theirs
MOST_CHECKS = (8.0, 16.0)  # that can be paid for at most: what was saved long ago says little
SLACK = 0.01  # steps that each run without guesses adds: an account that is empty fills again
WELL_OFF = 2  # checks; with less, guesses have to be good
SHORTEST = 2  # tokens alike that make a guess worth a check
# A check is worth it if good guesses bring the mean row more tokens than it costs, going by what earlier ones brought.
MOST_GAIN = 20.0  # so that a text that ends is soon known to have ended
_BEFORE_ALL = 1e9  # tokens a step, which no kind of run makes
LEARN, FORGET = 0.25, 0.02  # how far guesses move that, and how far each run without good ones moves it back
UNKNOWN = -1.0  # stands where nobody has learned that yet
SMALL_CHECK_PART = 3  # the other size of a check is this part of all guesses: a third


def sizes_of(guesses: int) -> tuple[int, ...]:
    """How many guesses a row may have checked at once, `guesses` at most: each size is a part of the executable."""
    few = -(-guesses // SMALL_CHECK_PART)
    return (few, guesses) if few < guesses - 2 else (guesses,)


class Guesser(Protocol):
    """Where guesses come from."""

    count: int  # G
    gain: float  # tokens that good guesses without end are thought to bring, while nobody knows
    foretells: bool  # whether what `look` tells are the guesses: then runs without guesses show which would be right

    def begun(self, draft: Any, step: Any) -> Any:
        """The guesser's own values for a call: before the first token, at `step` 0, they are of another text."""

    def look(self, state: SamplingState) -> tuple[Any, Any]:
        """What can be told in no time: guesses `[B, G]` int32, and how good they are `[B]` int32.

        That is how many tokens before them are as in the text they come from, 0 to `prompt_lookup.LONGEST`.
        """

    def guess(
        self, found: Any, count: Any, going: Any, chosen: Any, state: SamplingState, draft: Any
    ) -> tuple[Any, Any]:
        """Guesses `[B, G]` int32 for the rows that are `going [B]`, and the guesser's own values.

        Args:
            found: What `look` found.
            count: Scalar int32, how many of them will be checked.
            going: `[B]` bool.
            chosen: `[B, 1]` int32, each row's last token.
            state: The search's.
            draft: The guesser's own values.
        """

    def settled(self, state: SamplingState, draft: Any) -> Any:
        """The guesser's own values, once the search has chosen."""


class _CallLimits(NamedTuple):
    """How far a call goes, and what a check has to bring; see `advance`."""

    slots: int  # T
    count: Any
    unmixed: Any
    tried: Any
    price: Any  # [N] float32, steps that it costs to check guesses
    least: Any  # [N] float32, tokens that good guesses have to bring a row


class _Carry(NamedTuple):
    """What goes from one run of the model to the next."""

    saved: Any  # [2] float32, steps of the mean row, and of the slowest
    runs: Any  # [1 + N] int32, without guesses, and with each number of them
    chosen: Any  # [B, 1] int32, each row's last token, which has not been run
    state: SamplingState
    cache: Cache
    draft: Any  # the guesser's own
    scores: Any  # [B, G + 1, V], room for the logits of a run
    gain: Any  # float32, tokens that good guesses without end would bring
    found: Any  # [B, G] int32, what it found
    good: Any  # [B] bool, rows whose guesses are good
    kind: Any  # int32, of the next run: 0 without guesses, i with the i-th number of them


def advance(
    model: ChunkDecoder,
    values: dict,
    request: Request,
    search: Sampling,
    guesser: Guesser,
    step: Any,
    count: Any,
    unmixed: Any,
    tried: Any,
    stopped: Any,
    budget: Any,
) -> tuple[dict, tuple[Any, ...]]:
    """Run the model up to `count` times, until every row is finished or one has no more room in the cache.

    Args:
        model: The model.
        values: See `decode.advance`; `draft` of the guesser.
        request: What is asked for.
        search: How tokens are chosen.
        guesser: Where guesses come from.
        step: Scalar int32; 0 before the first token.
        count: Scalar int32.
        unmixed: Scalar int32. Above 0, all runs are of one kind, and no more than so many with guesses: then the time
            that they take tells what one takes.
        tried: Scalar int32, the index of a size of checks that goes before the others and need not be paid for; or -1.
        stopped: `[B]` bool, rows that need no more tokens.
        budget: `[3 + 2 N]` float32: how many steps guesses have saved the mean row, and the slowest one; how many
            tokens good guesses without end would bring, or `UNKNOWN`; for each of `sizes_of`, how many steps it costs
            to check so many; and for each, how many tokens good guesses have to bring a row for that.

    Returns:
        The values; how many tokens a row has at most, whether a row needs more, the search's progress, `[2 + N]` int32
        (the tokens of the unfinished row that has the most; runs without guesses, and with each number of them), and
        the first three of the budget as they are now, `[3]` float32.
    """
    sizes = len(sizes_of(guesser.count))
    costs = dict(price=budget[3 : 3 + sizes], least=budget[3 + sizes :])
    limits = _CallLimits(values["tokens"].shape[1], count, unmixed, tried, **costs)
    loop = _Loop(model, request, search, guesser, limits)
    state, runs = state_at(step, search, values), ops.zeros((1 + sizes,), "int32")
    state = state._replace(done=ops.logical_or(state.done, stopped))
    scores = ops.zeros((values["tokens"].shape[0], guesser.count + 1, model.vocab_size), "float32")
    draft = guesser.begun(values["draft"], step)
    gain = ops.where(budget[2] == UNKNOWN, guesser.gain, budget[2])
    began = budget[:2], runs, values["chosen"], state, values["cache"], draft, scores, gain
    end = loop.run(loop.prepared(*began))
    state, chosen = end.state, end.chosen
    values = {**values, "cache": end.cache, "chosen": chosen, "parents": ops.zeros_like(chosen), "search": state}
    furthest = ops.max(ops.where(state.done, 0, state.lengths))
    told = ops.concatenate([furthest[None], end.runs])
    left = ops.concatenate([end.saved, end.gain[None]])
    outputs = ops.max(state.lengths), search.unfinished(state), search.progress(state), told, left
    return {**values, "draft": end.draft}, outputs


class _Loop:
    """See `advance`."""

    def __init__(self, model: ChunkDecoder, request: Request, search: Sampling, guesser: Guesser, limits: _CallLimits):
        self._model, self._request, self._search, self._guesser = model, request, search, guesser
        self._limits, self._sizes = limits, sizes_of(guesser.count)

    def run(self, carry: _Carry) -> _Carry:
        """All runs of a call."""
        return while_loop(self._more, self._turn, carry)

    def prepared(self, saved, runs, chosen, state: SamplingState, cache: Cache, draft, scores, gain) -> _Carry:
        """The carry, with the kind of its next run."""
        going = self._going(state)
        found, matched = self._guesser.look(state)
        least = ops.cast(ops.where(saved[0] >= WELL_OFF * self._limits.price[0], SHORTEST, LONGEST), "int32")
        good = ops.logical_and(going, matched >= least)
        kind = self._kind(saved, state, going, good, gain)
        return _Carry(saved, runs, chosen, state, cache, draft, scores, gain, found, good, kind)

    def _kind(self, saved, state: SamplingState, going, good, gain):
        """The kind of run that makes most tokens in its time, of those that can be paid for; see `_Carry`."""
        price, sizes = self._limits.price, ops.convert_to_tensor(self._sizes, "int32")
        share = ops.sum(ops.cast(good, "float32")) / ops.maximum(ops.sum(ops.cast(going, "float32")), 1.0)
        # Each guess is as likely to be right as the one before it: `likely`, such that all together bring `gain`.
        likely = gain / (1.0 + gain)
        brought = share * gain * (1.0 - likely ** ops.cast(sizes, "float32"))  # [N]
        fits = ops.max(ops.where(state.done, 0, self._last(state))) + sizes + 1 <= self._limits.slots
        worth = ops.logical_and(share > 0, brought >= self._limits.least)
        tried = ops.arange(len(self._sizes), dtype="int32") == self._limits.tried
        paid = ops.logical_or(ops.all(saved[:, None] >= price[None], axis=0), tried)
        pace = ops.where(tried, _BEFORE_ALL, (1.0 + brought) / (1.0 + price))
        pace = ops.where(ops.logical_and(ops.logical_and(worth, paid), fits), pace, 0.0)
        return ops.where(ops.max(pace) > 0, 1 + ops.cast(ops.argmax(pace), "int32"), 0)

    def _last(self, state: SamplingState):
        """The slot of each row's last token, `[B]`."""
        return self._request.prompt_end - 1 + state.lengths

    def _going(self, state: SamplingState):
        """Which rows need another token and have room for it, `[B]` bool."""
        return ops.logical_and(ops.logical_not(state.done), self._last(state) < self._limits.slots - 1)

    def _more(self, now: _Carry):
        stuck = ops.logical_and(ops.logical_not(now.state.done), ops.logical_not(self._going(now.state)))
        on = ops.logical_and(self._search.unfinished(now.state), ops.logical_not(ops.any(stuck)))
        all_runs, unmixed = ops.cast(ops.sum(now.runs), "int32"), self._limits.unmixed
        one_kind = ops.logical_and(ops.take(now.runs, now.kind) == all_runs, all_runs - now.runs[0] < unmixed)
        alike = ops.logical_or(unmixed == 0, one_kind)
        return ops.logical_and(ops.logical_and(on, alike), all_runs < self._limits.count)

    def _scores(self, tokens, state: SamplingState, cache: Cache):
        """Logits `[B, S, V]` of `tokens [B, S]` from each row's last slot on; a finished row repeats its last ones."""
        size = tokens.shape[1]
        first = ops.minimum(self._last(state), self._limits.slots - size)
        slots = first[:, None] + ops.arange(size, dtype="int32")
        tokens = ops.where(state.done[:, None], ops.take_along_axis(state.tokens, slots, axis=1), tokens)
        view = View.causal(first, size, self._limits.slots, self._request.starts)
        return self._model.extend(tokens, first, view, cache)

    def _turn(self, now: _Carry) -> _Carry:
        """One run of the model, and what is chosen after it."""
        going = self._going(now.state)

        def guess(carry):
            guessed, draft = carry
            return self._guesser.guess(guessed, self._guesses(now.kind), going, now.chosen, now.state, draft)

        guessed, draft = run_if(now.kind > 0, guess, (now.found, now.draft))

        def run(guesses, carry):
            scores, cache = carry
            # A source may have tokens that the decoder has not: whatever stands for them is a wrong guess.
            known = ops.minimum(guessed[:, :guesses], self._model.vocab_size - 1)
            tokens = ops.concatenate([now.chosen, known], axis=1)
            made, cache = self._scores(tokens, now.state, cache)
            return update_slice(scores, (0, 0, 0), made), cache

        scores, cache = now.scores, now.cache
        for kind, guesses in enumerate((0, *self._sizes)):
            scores, cache = run_if(now.kind == kind, functools.partial(run, guesses), (scores, cache))
        chosen, state = self._choose(scores, guessed, now.kind, going, now.chosen, now.state)
        draft = self._guesser.settled(state, draft)
        runs = now.runs + ops.cast(ops.arange(now.runs.shape[0], dtype="int32") == now.kind, "int32")
        price = ops.take(self._limits.price, ops.maximum(now.kind - 1, 0))
        booked = ops.where(now.kind > 0, self._steps(now.state, state, going) - 1.0 - price, SLACK)
        most = ops.max(self._limits.price) * ops.convert_to_tensor(MOST_CHECKS, "float32")
        saved = ops.minimum(now.saved + booked, ops.maximum(most, now.saved))
        return self.prepared(saved, runs, chosen, state, cache, draft, scores, self._gain(now, chosen, state))

    def _gain(self, before: _Carry, chosen, after: SamplingState):
        """How many tokens good guesses would bring that go on for ever, beside the one that a run without makes.

        Of guesses that were all right nobody knows how many more would have been: they count as tokens, but not as a
        guess that has ended. A run without guesses shows whether the first one would have been right.
        """
        good, checked = ops.cast(before.good, "float32"), self._guesses(before.kind)
        more = after.lengths - before.state.lengths - 1
        shown = before.kind > 0
        if self._guesser.foretells:
            right = ops.cast(chosen[:, 0] == before.found[:, 0], "int32")
            more, checked = ops.where(shown, more, right), ops.maximum(checked, 1)
            shown = ops.any(before.good)
        ended = ops.cast(ops.logical_and(more < checked, ops.logical_not(after.done)), "float32")
        rows = ops.maximum(ops.sum(good), 1.0)
        brought, ended = ops.sum(good * ops.cast(more, "float32")) / rows, ops.sum(good * ended) / rows
        learned = before.gain + LEARN * (brought - ended * before.gain)
        gain = ops.where(shown, learned, before.gain + FORGET * (self._guesser.gain - before.gain))
        return ops.clip(gain, 0.0, MOST_GAIN)

    def _guesses(self, kind):
        """How many guesses a run of a kind checks."""
        return ops.take(ops.convert_to_tensor((0, *self._sizes), "int32"), kind)

    def _steps(self, before: SamplingState, after: SamplingState, going):
        """For how many steps of the mean row, and of the one that has most to make, a run stands: `[2]` float32.

        Who ended in this run would have ended without guesses, too.
        """
        rows = ops.maximum(ops.sum(ops.cast(going, "float32")), 1.0)
        mean = ops.sum(ops.cast(after.lengths - before.lengths, "float32")) / rows
        left = ops.logical_not(after.done)
        counted = ops.where(ops.any(left), left, going)

        def to_come(state):
            return ops.max(ops.where(counted, self._request.max_new_tokens - state.lengths, 0))

        return ops.stack([mean, ops.cast(to_come(before) - to_come(after), "float32")])

    def _choose(self, scores, guessed, kind, going, chosen, state: SamplingState) -> tuple[Any, SamplingState]:
        """Choose from `scores [B, G + 1, V]`: from the first, and if there were guesses from the next ones, too.

        A row goes on for as long as what it chooses is what was guessed.
        """
        guesses, last = guessed.shape[1], self._guesses(kind)

        def more(now):
            i, going, *_ = now
            return ops.logical_and(i <= last, ops.any(going))

        def choose(now):
            i, going, chosen, state = now
            behind = slice_at(scores, (0, i, 0), (scores.shape[0], 1, scores.shape[2]))[:, 0]  # much faster than take
            chosen, state = self._search.advance_rows(behind, going, chosen, state)
            same = chosen[:, 0] == ops.take(guessed, ops.minimum(i, guesses - 1), axis=1)
            return i + 1, ops.logical_and(ops.logical_and(going, same), self._going(state)), chosen, state

        *_, chosen, state = while_loop(more, choose, (ops.zeros((), "int32"), going, chosen, state))
        return chosen, state
