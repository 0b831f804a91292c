"""Beam search and beam sampling, with the result of Hugging Face's `generate`.

Each step has `2 K` candidates (more with several end-of-sequence tokens): of them at least `K` go on whichever
end, so the search never starves. Finished beams compete by log-probability / length ** length_penalty.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_xla.backend.slices import update_slice
from keras_xla.engine.search import random, samplers
from keras_xla.engine.search.filters import filter_logits
from keras_xla.engine.search.request import Request

# B batch, K beams, C candidates, T slots, V vocabulary

_NONE = np.float32(-1e9)  # the log-probability of a beam that is not there; Hugging Face's, so that sums round alike
_NO_SCORE = np.float32(-np.inf)  # of one that has not finished: a negative length_penalty makes scores below _NONE


class BeamState(NamedTuple):
    """Running beams, and the best of the finished ones."""

    running: Any  # [B, K, T] int32, the token in each slot, prompts included
    logprobs: Any  # [B, K] float32, of the running beams, best first
    tokens: Any  # [B, K, T] int32, finished
    lengths: Any  # [B, K] int32, new tokens
    scores: Any  # [B, K] float32
    finished: Any  # [B, K] bool
    open: Any  # [B] bool: a running beam may still beat the finished ones
    # Sums of log-probabilities of what the processors have left, if anybody wants them:
    left_running: Any  # [B, K] float32, or ()
    left_finished: Any  # [B, K] float32, or ()


class BeamSearch:
    """Beam search, or beam sampling, where candidates are drawn without replacement instead of taken.

    Args:
        request: The request.
        is_eos: `[V]` bool, the tokens that end a sequence.
        process: From log-probabilities `[B K, V]`, tokens `[B K, T]` and the step to processed ones.
        width: K.
        processed_scores: Whether the state has sums of the processed distribution, too. They do not change the search.
    """

    def __init__(self, request: Request, is_eos: Any, process: Callable, width: int, processed_scores: bool):
        self._request, self._is_eos, self._process, self.width = request, is_eos, process, width
        self._processed_scores = processed_scores
        self._candidates = max(2, 1 + request.eos.shape[0]) * width
        self._candidates = min(self._candidates, is_eos.shape[0] * width)  # there are no more
        self._early = request.early_stopping == 1

    @staticmethod
    def specs(batch: int, slots: int, width: int, processed_scores: bool) -> BeamState:
        """Shapes and dtypes of the state."""
        tokens, beams = keras.KerasTensor((batch, width, slots), "int32"), (batch, width)
        return BeamState(
            running=tokens,
            logprobs=keras.KerasTensor(beams, "float32"),
            tokens=tokens,
            lengths=keras.KerasTensor(beams, "int32"),
            scores=keras.KerasTensor(beams, "float32"),
            finished=keras.KerasTensor(beams, "bool"),
            open=keras.KerasTensor((batch,), "bool"),
            left_running=keras.KerasTensor(beams, "float32") if processed_scores else (),
            left_finished=keras.KerasTensor(beams, "float32") if processed_scores else (),
        )

    def begin(self, tokens) -> BeamState:
        """The state before the first token, from the prompts `[B, T]`."""
        shape = (tokens.shape[0], self.width)
        slot = ops.arange(tokens.shape[1], dtype="int32")
        empty = ops.where(slot < self._request.prompt_end, tokens, self._request.pad)
        empty = ops.tile(empty[:, None], (1, self.width, 1))
        none = ops.full(shape, _NONE, "float32")
        return BeamState(
            running=empty,
            # All beams begin alike: only the first counts, or they would find the same K times.
            logprobs=ops.concatenate([ops.zeros((shape[0], 1), "float32"), none[:, 1:]], axis=1),
            tokens=empty,
            lengths=ops.zeros(shape, "int32"),
            scores=ops.full(shape, _NO_SCORE, "float32"),
            finished=ops.zeros(shape, "bool"),
            open=self._request.starts < self._request.prompt_end,  # the others only fill the bucket
            left_running=ops.zeros(shape, "float32") if self._processed_scores else (),
            left_finished=ops.zeros(shape, "float32") if self._processed_scores else (),
        )

    def advance(self, scores, step, state: BeamState):
        """See `decode.Search`."""
        logprobs, parents, tokens, left = self._expand(scores, step, state)  # [B, C] each
        rows = ops.take_along_axis(state.running, parents[:, :, None], axis=1)
        rows = update_slice(rows, (0, 0, self._request.prompt_end + step), tokens[:, :, None])  # [B, C, T]
        over = ops.logical_or(ops.take(self._is_eos, tokens), self._last(step)[:, None])

        going_on = logprobs + ops.where(over, _NONE, 0.0)
        _, best = ops.top_k(going_on, self.width)
        running, next_logprobs = _take(rows, best), _take(going_on, best)

        finished = self._collect(logprobs, rows, left, over, step, state)
        left_running = _take(left, best) if self._processed_scores else ()
        state = state._replace(running=running, logprobs=next_logprobs, left_running=left_running, **finished)
        on = ops.logical_and(self._improvable(step, state), ops.logical_not(self._last(step)))
        state = state._replace(open=ops.logical_and(state.open, on))
        return _take(tokens, best), _take(parents, best), state

    def unfinished(self, state: BeamState):
        """See `decode.Search`."""
        full = ops.logical_and(self._early, ops.all(state.finished, axis=-1))
        return ops.any(ops.logical_and(state.open, ops.logical_not(full)))

    def progress(self, state: BeamState) -> tuple:
        """See `decode.Search`: beams change until the last token, and there is nothing to tell before."""
        return ()

    def _expand(self, scores, step, state: BeamState):
        """The best (or drawn) continuations of all beams: log-probabilities, beams and tokens, `[B, C]` each.

        Last come the sums of the processed distribution `[B, C]`, or `()`.
        """
        r, vocab = self._request, scores.shape[-1]
        batch, rows = r.starts.shape[0], r.starts.shape[0] * self.width
        flat = ops.reshape(scores, (rows, vocab))
        flat = _normalized(flat)
        flat = self._process(flat, ops.reshape(state.running, (rows, -1)), step)

        def normal(flat):
            def again():  # what is off stays off: a beam that may make no token is not to come back
                return ops.where(flat > samplers.FORBIDDEN / 2, _normalized(flat), flat)

            return ops.cond(r.renormalize_logits, again, lambda: flat)

        def total(flat):
            sums = ops.reshape(flat, (batch, self.width, vocab)) + state.logprobs[:, :, None]
            return ops.reshape(sums, (batch, self.width * vocab))

        def drawn():
            # The largest of Gumbel-perturbed scores are a draw without replacement (Kool et al., 2019).
            eos_count = ops.cast(ops.sum(ops.cast(r.eos >= 0, "int32")), "int32")
            least = ops.maximum(eos_count, 1) + 1
            kept = filter_logits(flat, r.filters(self.width), least, r.eos.shape[0] + 1)
            kept = ops.where(ops.isnan(flat), flat, kept)  # broken weights are no forbidden tokens
            sums = total(normal(kept))
            uniform = random.uniform_each(r.seeds, r.rows, sums.shape[1], step)
            index = ops.cast(ops.top_k(sums - ops.log(-ops.log(uniform)), self._candidates)[1], "int32")
            wanted = ops.arange(self._candidates, dtype="int32")[None] < least * self.width  # there is room for more
            return ops.where(wanted, ops.take_along_axis(sums, index, axis=1), samplers.FORBIDDEN), index

        def best():
            logprobs, index = ops.top_k(total(normal(flat)), self._candidates)
            return logprobs, ops.cast(index, "int32")

        logprobs, index = ops.cond(r.do_sample, drawn, best)
        parents, left = index // vocab, ()
        if self._processed_scores:
            chosen = ops.take_along_axis(ops.reshape(_normalized(flat), (batch, self.width * vocab)), index, axis=1)
            left = chosen + _take(state.left_running, parents)
        return logprobs, parents, index % vocab, left

    def _collect(self, logprobs, rows, left, over, step, state: BeamState) -> dict[str, Any]:
        """The best `K` of the finished beams and of those that have just finished, as parts of a state."""
        first = ops.arange(self._candidates, dtype="int32")[None] < self.width  # the rest are only spares
        just = ops.logical_and(over, first)
        final = logprobs / ops.cast(step + 1, "float32") ** self._request.length_penalty[:, None]
        full = ops.logical_and(self._early, ops.all(state.finished, axis=-1))
        closed = ops.logical_or(full, ops.logical_not(state.open))[:, None]
        there = ops.logical_or(logprobs > _NONE / 2, final > _NONE)
        counts = ops.logical_and(ops.logical_and(just, there), ops.logical_not(closed))
        final = ops.where(ops.logical_or(counts, ops.isnan(final)), final, _NO_SCORE)
        scores = ops.concatenate([state.scores, final], axis=1)
        _, best = ops.top_k(scores, self.width)
        lengths = ops.broadcast_to(step + 1, just.shape)
        pairs = dict(tokens=rows, lengths=lengths, scores=final, finished=just)
        pairs |= dict(left_finished=left) if self._processed_scores else {}
        both = {name: ops.concatenate([getattr(state, name), new], axis=1) for name, new in pairs.items()}
        return {name: _take(each, best) for name, each in both.items()}

    def _last(self, step):
        """Whether this step's token is the last that a row may have, `[B]` bool."""
        return step + 1 >= self._request.max_new_tokens

    def _improvable(self, step, state: BeamState):
        """Whether the best running beam may still beat a finished one, `[B]` bool."""
        r = self._request
        longest = ops.logical_and(r.early_stopping == 2, r.length_penalty > 0)
        length = ops.where(longest, r.max_new_tokens, step + 1)  # [B]
        possible = state.logprobs[:, :1] / (ops.cast(length, "float32") ** r.length_penalty)[:, None]
        least = ops.where(state.logprobs[:, :1] > _NONE / 2, _NO_SCORE, _NONE)  # of a beam that is not there
        worst = ops.min(ops.maximum(state.scores, least), axis=1, keepdims=True)
        worst = ops.where(state.finished, worst, least)
        return ops.any(possible > worst, axis=1)


def _normalized(logits):
    """Log-probabilities, `[B K, V]`."""
    return logits - ops.logsumexp(logits, axis=-1, keepdims=True)


def _take(x, index):
    """`x [B, C, ...]` at `index [B, K]`."""
    index = ops.cast(index, "int32")
    return ops.take_along_axis(x, ops.reshape(index, (*index.shape, *[1] * (len(x.shape) - 2))), axis=1)
