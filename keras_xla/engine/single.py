"""One continuation a row: greedy search, or sampling."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_xla.engine import random, samplers
from keras_xla.engine.state import Request, Result

# B batch, N new-token slots, V vocabulary


class State(NamedTuple):
    """The state: who is done, and what each row has."""

    done: Any  # [B] bool
    sequences: Any  # [B, N] int32
    lengths: Any  # [B] int32
    scores: Any  # [B] float32, log-probabilities, summed


class Single:
    """Greedy search, or sampling.

    Args:
        request: The request.
        new_tokens: N.
        ends: `[V]` bool, the tokens that end a sequence.
        process: From logits `[B, V]`, the tokens made so far `[B, N]` and the step to processed logits.
        sampling: Whether tokens are drawn.
        processed_scores: Whether scores are of the processed distribution rather than the model's own.
    """

    width = 1

    def __init__(
        self, request: Request, new_tokens: int, ends: Any, process: Callable, sampling: bool, processed_scores: bool
    ):
        self._request, self._new_tokens, self._ends = request, new_tokens, ends
        self._process, self._sampling, self._processed_scores = process, sampling, processed_scores

    def begin(self) -> State:
        batch, prompt = self._request.ids.shape
        return State(
            done=self._request.starts >= prompt,  # rows that only fill the bucket
            sequences=ops.broadcast_to(self._request.pad, (batch, self._new_tokens)),
            lengths=ops.zeros((batch,), "int32"),
            scores=ops.zeros((batch,), "float32"),
        )

    def advance(self, scores, step, state: State):
        scores = scores[:, 0]
        processed = self._process(scores, state.sequences, step)
        token = self._choose(processed, step)
        scores = processed if self._processed_scores else scores
        chosen = ops.take_along_axis(scores, token[:, None], axis=-1)[:, 0]
        logprob = chosen - ops.logsumexp(scores, axis=-1)
        done = state.done
        token = ops.where(done, self._request.pad, token)
        state = State(
            done=ops.logical_or(done, ops.take(self._ends, token)),
            sequences=ops.slice_update(state.sequences, (0, step), token[:, None]),
            lengths=ops.where(done, state.lengths, step + 1),
            scores=ops.where(done, state.scores, state.scores + logprob),
        )
        return token[:, None], ops.zeros_like(token[:, None]), state

    def unfinished(self, state: State):
        return ops.logical_not(ops.all(state.done))

    def result(self, state: State) -> Result:
        return Result(state.sequences[:, None], state.lengths[:, None], state.scores[:, None])

    def _choose(self, scores, step):
        if not self._sampling:
            return samplers.greedy(scores)
        r = self._request
        kept = samplers.keep(scores, r.temperature, r.top_k, r.top_p, r.min_p)
        return samplers.draw(samplers.weights(kept), random.uniform(r.seed, r.ids.shape[0], step))
