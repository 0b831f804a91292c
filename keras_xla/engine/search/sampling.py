"""One continuation a row: the most likely token, or a drawn one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_xla.backend.slices import update_slice
from keras_xla.engine.search import random, samplers
from keras_xla.engine.search.filters import filter_logits
from keras_xla.engine.search.request import Request

# B batch, T slots, V vocabulary


class SamplingState(NamedTuple):
    """Who is done, and what each row has."""

    tokens: Any  # [B, T] int32, the token in each slot, prompts included
    done: Any  # [B] bool
    lengths: Any  # [B] int32, new tokens
    logprobs: Any  # [B, T] float32, the log-probability of each new token, at its slot


class Progress(NamedTuple):
    """What a call tells of each row."""

    tokens: Any  # [B, T] int32, the token in each slot, prompts included
    lengths: Any  # [B] int32, new tokens
    done: Any  # [B] bool


class Sampling:
    """Greedy search, or sampling.

    Args:
        request: The request.
        is_eos: `[V]` bool, the tokens that end a sequence.
        process: From logits `[B, V]`, tokens `[B, T]` and the step to processed logits.
        processed_scores: Whether scores are of the processed distribution rather than the model's own.
    """

    width = 1

    def __init__(self, request: Request, is_eos: Any, process: Callable, processed_scores: bool):
        self._request, self._is_eos = request, is_eos
        self._process, self._processed_scores = process, processed_scores

    @staticmethod
    def specs(batch: int, slots: int, width: int) -> SamplingState:
        """Shapes and dtypes of the state, but for the tokens."""
        row = (batch,)
        return SamplingState(
            tokens=keras.KerasTensor((batch, slots), "int32"),
            done=keras.KerasTensor(row, "bool"),
            lengths=keras.KerasTensor(row, "int32"),
            logprobs=keras.KerasTensor((batch, slots), "float32"),
        )

    def begin(self, tokens) -> SamplingState:
        """The state before the first token, from the prompts `[B, T]`."""
        row = self._request.starts.shape
        return SamplingState(
            tokens=tokens,
            done=self._request.starts >= self._request.prompt_end,  # rows that only fill the bucket
            lengths=ops.zeros(row, "int32"),
            logprobs=ops.zeros(tokens.shape, "float32"),
        )

    def advance(self, scores, step, state: SamplingState):
        """See `decode.Search`; of the `step` there may be one for each row, `[B]`."""
        scores, request = scores[:, 0], self._request
        processed = self._process(scores, state.tokens, step[:, None] if len(step.shape) else step)
        token, left = ops.cond(
            request.do_sample, lambda: self._draw(processed, step, state), lambda: self._greedy(processed)
        )
        scores = processed if self._processed_scores else scores
        chosen = ops.take_along_axis(scores, token[:, None], axis=-1)[:, 0]
        logprob = ops.where(left, chosen - ops.logsumexp(scores, axis=-1), np.nan)
        done, at = state.done, request.prompt_end + step
        last = ops.logical_or(ops.take(self._is_eos, token), step + 1 >= request.max_new_tokens)
        token = ops.where(done, request.pad, token)
        state = SamplingState(
            tokens=_put(state.tokens, at, token),
            done=ops.logical_or(done, last),
            lengths=ops.where(done, state.lengths, step + 1),
            logprobs=_put(state.logprobs, at, logprob),
        )
        return token[:, None], ops.zeros_like(token[:, None]), state

    def advance_rows(self, scores, rows, chosen, state: SamplingState) -> tuple[Any, SamplingState]:
        """Another token of some rows, each at its own step.

        Args:
            scores: `[B, V]`.
            rows: `[B]` bool, which of them.
            chosen: `[B, 1]` int32, each row's last token.
            state: Whose lengths are the steps.

        Returns:
            The tokens that are each row's last ones now, and the state.
        """
        held = state._replace(done=ops.logical_or(state.done, ops.logical_not(rows)))
        token, _, new = self.advance(scores[:, None], state.lengths, held)
        done = ops.where(rows, new.done, state.done)
        return ops.where(rows[:, None], token, chosen), new._replace(done=done)

    def unfinished(self, state: SamplingState):
        """See `decode.Search`."""
        return ops.logical_not(ops.all(state.done))

    def progress(self, state: SamplingState) -> Progress:
        """See `decode.Search`."""
        return Progress(state.tokens, state.lengths, state.done)

    def _greedy(self, scores):
        """The next token of each row, and whether it has a score: Hugging Face takes 0 where all are forbidden."""
        token = samplers.greedy(scores)
        return token, ops.logical_not(ops.isnan(ops.take_along_axis(scores, token[:, None], axis=-1)[:, 0]))

    def _draw(self, scores, step, state):
        """The next token of each row, and whether any was left to draw."""
        going_on = ops.logical_not(state.done)[:, None]
        kept = samplers.weights(filter_logits(scores, self._request.filters(), rows=going_on))
        uniform = random.uniform(self._request.seeds, self._request.rows, step)
        return samplers.draw(kept, uniform), ops.max(kept, axis=-1) > 0


def _put(array, slot, values):
    """`array [B, T]` with the `values [B]` in a slot, or in one for each row `[B]`; slots from T on take nothing."""
    if not len(slot.shape):
        return update_slice(array, (0, slot), values[:, None])
    return ops.where(ops.arange(array.shape[1], dtype="int32")[None] == slot[:, None], values[:, None], array)
