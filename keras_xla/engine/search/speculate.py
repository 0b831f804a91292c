"""The loop over new tokens with guesses: several tokens run through the model at once, and count as far as they agree.

The logits behind each guess are those that a step would have had, and the search chooses from them as it always does.
So what is made does not depend on the guesses, only how often the model runs. (Leviathan et al., "Fast inference from
transformers via speculative decoding", 2023; here the draws are those of plain sampling.)

Rows come on at their own speed: each has its own next slot. Guesses that were wrong leave keys and values behind a
row's last token, which no token sees before they are written anew.
"""

from typing import Any, NamedTuple, Protocol

from keras import ops

from keras_xla.engine.search.decode import state_at
from keras_xla.engine.search.prompt_lookup import LONGEST
from keras_xla.engine.search.request import Request
from keras_xla.engine.search.sampling import Sampling, SamplingState
from keras_xla.engine.search.while_loop import run_if, while_loop
from keras_xla.models.interface import Cache, ChunkDecoder, View

# B batch, T cache slots, G guesses, S tokens that run at once (G + 1), V vocabulary

# Guesses are paid for with what earlier ones have saved, counted in steps: they cannot cost much more than they bring.
# There are two accounts: of the mean row, and of the slowest one, for which a batch waits. Rows get ahead in turns, so
# the second begins with more.
FREE_CHECKS = (2.0, 8.0)  # that can be paid for before anything was saved
LEAST_FREE = (1.0, 2.0)  # and where earlier texts were not worth theirs
MOST_CHECKS = (4.0, 8.0)  # that can be paid for at most: what was saved long ago says little
SLACK = 0.02  # steps that each run without guesses adds
WELL_OFF = 2  # checks; with less, guesses have to be good
SHORTEST = 2  # tokens alike that make a guess worth a check
# A check is worth it if good guesses bring the mean row more tokens than it costs, going by what earlier ones brought.
GAIN = 3.0  # tokens that a good guess is thought to bring while nobody knows
LEARN, FORGET = 0.25, 0.02  # how far a check moves that, and how far each run without one moves it back


class Guesser(Protocol):
    """Where guesses come from."""

    count: int  # G

    def begun(self, draft: Any, step: Any) -> Any:
        """The guesser's own values for a call: before the first token, at `step` 0, they are of another text."""

    def look(self, state: SamplingState) -> tuple[Any, Any]:
        """What can be told in no time: guesses `[B, G]` int32, and how good they are `[B]` int32.

        That is how many tokens before them are as in the text they come from, 0 to `prompt_lookup.LONGEST`.
        """

    def guess(self, found: Any, going: Any, chosen: Any, state: SamplingState, draft: Any) -> tuple[Any, Any]:
        """Guesses `[B, G]` int32 for the rows that are `going [B]`, and the guesser's own values.

        Args:
            found: What `look` found.
            going: `[B]` bool.
            chosen: `[B, 1]` int32, each row's last token.
            state: The search's.
            draft: The guesser's own values.
        """

    def settled(self, state: SamplingState, draft: Any) -> Any:
        """The guesser's own values, once the search has chosen."""


class _Limits(NamedTuple):
    """How far a call goes, and what a check has to bring; see `advance`."""

    slots: int  # T
    count: Any
    unmixed: Any
    price: Any  # float32, steps that it costs to check guesses
    least: Any  # float32, tokens that good guesses have to bring a row


class _Carry(NamedTuple):
    """What goes from one run of the model to the next."""

    saved: Any  # [2] float32, steps of the mean row, and of the slowest
    runs: Any  # [2] int32, without guesses, and with them
    chosen: Any  # [B, 1] int32, each row's last token, which has not been run
    state: SamplingState
    cache: Cache
    draft: Any  # the guesser's own
    scores: Any  # [B, S, V], room for the logits of a run
    gain: Any  # float32, tokens that a good guess brings
    found: Any  # [B, G] int32, what it found
    good: Any  # [B] bool, rows whose guesses are good
    check: Any  # bool, whether the next run is to check guesses


def advance(
    model: ChunkDecoder,
    values: dict,
    request: Request,
    search: Sampling,
    guesser: Guesser,
    step: Any,
    count: Any,
    unmixed: Any,
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
        unmixed: Scalar int32. Above 0, all runs are without guesses, or all with them and no more than so many: then
            the time that they take tells what one takes.
        stopped: `[B]` bool, rows that need no more tokens.
        budget: `[5]` float32: how many steps guesses have saved the mean row, and the slowest one; how many tokens a
            good guess brings; how many steps it costs to check some; and how many tokens a row good guesses have to
            bring for a check.

    Returns:
        The values; how many tokens a row has at most, whether a row needs more, the search's progress, `[3]` int32 (the
        tokens of the unfinished row that has the most; runs without guesses, and with them), and the first three
        of the budget as they are now, `[3]` float32.
    """
    limits = _Limits(values["tokens"].shape[1], count, unmixed, price=budget[3], least=budget[4])
    loop = _Loop(model, request, search, guesser, limits)
    state, runs = state_at(step, search, values), ops.zeros((2,), "int32")
    state = state._replace(done=ops.logical_or(state.done, stopped))
    scores = ops.zeros((values["tokens"].shape[0], guesser.count + 1, model.vocab_size), "float32")
    draft = guesser.begun(values["draft"], step)
    began = budget[:2], runs, values["chosen"], state, values["cache"], draft, scores, budget[2]
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

    def __init__(self, model: ChunkDecoder, request: Request, search: Sampling, guesser: Guesser, limits: _Limits):
        self._model, self._request, self._search, self._guesser = model, request, search, guesser
        self._limits = limits

    def run(self, carry: _Carry) -> _Carry:
        """All runs of a call."""
        return while_loop(self._more, self._turn, carry)

    def prepared(self, saved, runs, chosen, state: SamplingState, cache: Cache, draft, scores, gain) -> _Carry:
        """The carry, and whether its next run is to check guesses."""
        going, guesses = self._going(state), self._guesser.count
        found, matched = self._guesser.look(state)
        least = ops.where(saved[0] >= WELL_OFF * self._limits.price, SHORTEST, LONGEST)
        good = ops.logical_and(going, matched >= least)
        share = ops.sum(ops.cast(good, "float32")) / ops.maximum(ops.sum(ops.cast(going, "float32")), 1.0)
        fits = ops.max(ops.where(state.done, 0, self._last(state))) + guesses + 1 <= self._limits.slots
        worth = ops.logical_and(share > 0, share * ops.minimum(gain, float(guesses)) >= self._limits.least)
        check = ops.logical_and(ops.logical_and(ops.all(saved >= self._limits.price), worth), fits)
        return _Carry(saved, runs, chosen, state, cache, draft, scores, gain, found, good, check)

    def _last(self, state: SamplingState):
        """The slot of each row's last token, `[B]`."""
        return self._request.prompt_end - 1 + state.lengths

    def _going(self, state: SamplingState):
        """Which rows need another token and have room for it, `[B]` bool."""
        return ops.logical_and(ops.logical_not(state.done), self._last(state) < self._limits.slots - 1)

    def _more(self, now: _Carry):
        stuck = ops.logical_and(ops.logical_not(now.state.done), ops.logical_not(self._going(now.state)))
        on = ops.logical_and(self._search.unfinished(now.state), ops.logical_not(ops.any(stuck)))
        plain, checked = now.runs[0], now.runs[1]
        same_kind = ops.where(now.check, plain == 0, checked == 0)
        alike = ops.logical_or(self._limits.unmixed == 0, ops.logical_and(same_kind, checked < self._limits.unmixed))
        return ops.logical_and(ops.logical_and(on, alike), plain + checked < self._limits.count)

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

        def alone(carry):
            scores, cache = carry
            made, cache = self._scores(now.chosen, now.state, cache)
            return ops.slice_update(scores, (0, 0, 0), made), cache

        def with_guesses(carry):
            guessed, draft, _, cache = carry
            guessed, draft = self._guesser.guess(guessed, going, now.chosen, now.state, draft)
            scores, cache = self._scores(ops.concatenate([now.chosen, guessed], axis=1), now.state, cache)
            return guessed, draft, scores, cache

        scores, cache = run_if(ops.logical_not(now.check), alone, (now.scores, now.cache))
        guessed, draft, scores, cache = run_if(now.check, with_guesses, (now.found, now.draft, scores, cache))
        chosen, state = self._choose(scores, guessed, now.check, going, now.chosen, now.state)
        draft = self._guesser.settled(state, draft)
        kind = ops.stack([ops.logical_not(now.check), now.check])
        booked = ops.where(now.check, self._steps(now.state, state, going) - 1.0 - self._limits.price, SLACK)
        most = self._limits.price * ops.convert_to_tensor(MOST_CHECKS, "float32")
        saved = ops.minimum(now.saved + booked, ops.maximum(most, now.saved))
        runs, gain = now.runs + ops.cast(kind, "int32"), self._gain(now, state)
        return self.prepared(saved, runs, chosen, state, cache, draft, scores, gain)

    @staticmethod
    def _gain(before: _Carry, after: SamplingState):
        """How many tokens a good guess brings, beside the one that a run without it makes."""
        good = ops.cast(before.good, "float32")
        more = ops.cast(after.lengths - before.state.lengths - 1, "float32")
        brought = ops.sum(good * more) / ops.maximum(ops.sum(good), 1.0)
        checked = before.gain + LEARN * (brought - before.gain)
        return ops.where(before.check, checked, before.gain + FORGET * (GAIN - before.gain))

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

    def _choose(self, scores, guessed, check, going, chosen, state: SamplingState) -> tuple[Any, SamplingState]:
        """Choose from `scores [B, S, V]`: from the first, and if there were guesses from the next ones, too.

        A row goes on for as long as what it chooses is what was guessed.
        """
        guesses = guessed.shape[1]
        last = ops.where(check, guesses, 0)

        def more(now):
            i, going, *_ = now
            return ops.logical_and(i <= last, ops.any(going))

        def choose(now):
            i, going, chosen, state = now
            behind = ops.slice(scores, (0, i, 0), (scores.shape[0], 1, scores.shape[2]))[:, 0]  # much faster than take
            chosen, state = self._search.advance_rows(behind, going, chosen, state)
            same = chosen[:, 0] == ops.take(guessed, ops.minimum(i, guesses - 1), axis=1)
            return i + 1, ops.logical_and(ops.logical_and(going, same), self._going(state)), chosen, state

        *_, chosen, state = while_loop(more, choose, (ops.zeros((), "int32"), going, chosen, state))
        return chosen, state
