"""Guesses of a smaller model, which goes ahead with a cache of its own."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_xla.backend.slices import update_slice
from keras_xla.engine.search.prompt_lookup import LONGEST
from keras_xla.engine.search.samplers import FORBIDDEN
from keras_xla.engine.search.sampling import Sampling, SamplingState
from keras_xla.engine.search.while_loop import run_if, while_loop
from keras_xla.models.interface import Cache, ChunkDecoder, View

# B batch, T slots, G guesses, V vocabulary


class Draft(NamedTuple):
    """What stays of an assistant from one run to the next."""

    cache: Cache  # with T slots
    known: Any  # [B] int32, the slots of each row, from the first on, that hold its text
    spoiled: Any  # Bool, whether logits were NaN: then there is NaN in the cache

    @staticmethod
    def specs(cache: Any, batch: int) -> "Draft":
        """Shapes and dtypes, `cache` being those of the assistant's."""
        return Draft(cache, keras.KerasTensor((batch,), "int32"), keras.KerasTensor((), "bool"))


class Assistant:
    """Guesses for a request; a `speculate.Guesser`.

    It chooses as the model would: from its own logits with the same processors, filters and draws. So the better it
    knows what the model thinks, the more often both draw the same token.

    Args:
        model: The smaller model. Tokens that it does not know are never guessed, those that it has more are left out.
        starts: `[B]` int32, each row's first real slot.
        prompt_end: Int32, the slot behind the prompts.
        search: How tokens are chosen.
        vocab_size: Of the model that is assisted.
        slots: T.
        chunk: Tokens that it reads at once where it has missed some.
        count: G.
        unread: Scalar bool: whether it guesses without reading what it has not seen. Such guesses are worthless, but
            they take as long as others do, and leave nothing behind.
    """

    gain, foretells = 3.0, False

    def __init__(
        self,
        model: ChunkDecoder,
        starts: Any,
        prompt_end: Any,
        search: Sampling,
        vocab_size: int,
        slots: int,
        chunk: int,
        count: int,
        unread: Any = False,
    ):
        self._model, self._starts, self._prompt_end, self._search = model, starts, prompt_end, search
        self._vocab_size, self._slots, self._chunk, self.count = vocab_size, slots, chunk, count
        self._unread = unread

    def begun(self, draft: Draft, step: Any) -> Draft:
        """See `speculate.Guesser`. What it has not seen it reads once it is asked: it may never be."""
        first = ops.equal(step, 0)
        spoiled = ops.logical_and(draft.spoiled, ops.logical_not(first))
        return draft._replace(known=ops.where(first, 0, draft.known), spoiled=spoiled)

    def look(self, state: SamplingState) -> tuple[Any, Any]:
        """See `speculate.Guesser`: it always has something to say."""
        batch = state.lengths.shape[0]
        return ops.zeros((batch, self.count), "int32"), ops.full((batch,), LONGEST, "int32")

    def guess(self, found, count, going, chosen, state: SamplingState, draft: Draft) -> tuple[Any, Draft]:
        """See `speculate.Guesser`."""
        last = self._last(state)
        # Two tokens: of guesses that were all right, it has not run the last one.
        before = ops.maximum(last - 1, 0)
        known = draft.known
        draft = self._caught_up(state.tokens, ops.where(self._unread, known, before), draft)
        scores, cache = self._read(state.tokens, before, 2, draft.cache)
        scores = ops.where((last > before)[:, None], scores[:, 1], scores[:, 0])
        before_guesses = scores

        def one(now):
            i, guessed, scores, chosen, state, cache = now
            chosen, state = self._search.advance_rows(scores, going, chosen, state)
            guessed = update_slice(guessed, (0, i), chosen)

            def run(now):
                slots = ops.minimum(last + 1 + i, self._slots - 1)  # rows that have ended go on, too
                logits, cache = self._extend(chosen, slots, now[1])
                return logits[:, 0], cache

            scores, cache = run_if(i + 1 < count, run, (scores, cache))
            return i + 1, guessed, scores, chosen, state, cache

        initial = (ops.zeros((), "int32"), found, scores, chosen, state, cache)
        _, guessed, scores, *_, cache = while_loop(lambda now: now[0] < count, one, initial)
        nan = ops.logical_or(ops.any(ops.isnan(before_guesses)), ops.any(ops.isnan(scores)))
        spoiled = ops.logical_or(draft.spoiled, nan)
        return guessed, Draft(cache, ops.where(self._unread, known, last + count), spoiled)

    def settled(self, state: SamplingState, draft: Draft) -> Draft:
        """See `speculate.Guesser`: what was guessed in vain it does not know."""
        return draft._replace(known=ops.minimum(draft.known, self._last(state)))

    def _last(self, state: SamplingState):
        """The slot of each row's last token, `[B]`."""
        return self._prompt_end - 1 + state.lengths

    def _caught_up(self, tokens, last, draft: Draft) -> Draft:
        """With all tokens before the slots `last` in the cache: what was made without guesses, it has not seen."""

        def missing(now: Draft):
            return ops.any(now.known < last)

        def run(now: Draft) -> Draft:
            first = ops.minimum(now.known, self._slots - self._chunk)
            _, cache = self._read(tokens, first, self._chunk, now.cache)
            return now._replace(cache=cache, known=ops.minimum(first + self._chunk, last))

        return while_loop(missing, run, draft)

    def _read(self, tokens, first, count: int, cache: Cache) -> tuple[Any, Cache]:
        """`_extend` with the `count` tokens of `tokens [B, T]` from each row's slot `first [B]` on."""
        slots = first[:, None] + ops.arange(count, dtype="int32")
        return self._extend(ops.take_along_axis(tokens, slots, axis=1), first, cache)

    def _extend(self, tokens, first, cache: Cache) -> tuple[Any, Cache]:
        """Logits `[B, S, V]` behind `tokens [B, S]`, which go to the slots from `first [B]` on."""
        view = View.causal(first, tokens.shape[1], self._slots, self._starts)
        logits, cache = self._model.extend(ops.minimum(tokens, self._model.vocab_size - 1), first, view, cache)
        logits = logits[..., : self._vocab_size]
        missing = self._vocab_size - logits.shape[-1]
        return ops.pad(logits, ((0, 0), (0, 0), (0, missing)), constant_values=FORBIDDEN), cache
