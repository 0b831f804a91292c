"""Beam search and beam sampling, with the result of Hugging Face's `generate`.

Each step has `2 K` candidates (more with several end-of-sequence tokens): of them at least `K` go on whichever
end, so the search never starves. Finished beams compete by log-probability / length ** length_penalty.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_xla.engine import random, samplers
from keras_xla.engine.state import Request, Result

# B batch, K beams, C candidates, N new-token slots, V vocabulary

_NONE = -1e9  # the score of a beam that is not there; Hugging Face's, so that sums round alike


class State(NamedTuple):
    """The state: running beams, and the best of the finished ones."""

    running: Any  # [B, K, N] int32
    logprobs: Any  # [B, K] float32, of the running beams, best first
    sequences: Any  # [B, K, N] int32, finished
    lengths: Any  # [B, K] int32
    scores: Any  # [B, K] float32
    finished: Any  # [B, K] bool
    open: Any  # [B] bool: a running beam may still beat the finished ones


class BeamSearch:
    """Beam search (`sampling`: candidates are drawn without replacement instead of taken).

    Args:
        request: The request.
        new_tokens: N.
        ends: `[V]` bool, the tokens that end a sequence.
        process: From log-probabilities `[B K, V]`, the tokens made so far `[B K, N]` and the step to processed ones.
        sampling: Whether candidates are drawn.
        width: K.
    """

    def __init__(self, request: Request, new_tokens: int, ends: Any, process: Callable, sampling: bool, width: int):
        self._request, self._new_tokens, self._ends = request, new_tokens, ends
        self._process, self._sampling, self.width = process, sampling, width
        self._candidates = max(2, 1 + request.eos.shape[0]) * width
        self._early = request.early_stopping == 1

    def begin(self) -> State:
        batch, prompt = self._request.ids.shape
        shape = (batch, self.width)
        empty = ops.broadcast_to(self._request.pad, (*shape, self._new_tokens))
        none = ops.full(shape, _NONE, "float32")
        return State(
            running=empty,
            # All beams begin alike: only the first counts, or they would find the same K times.
            logprobs=ops.concatenate([ops.zeros((batch, 1)), none[:, 1:]], axis=1),
            sequences=empty,
            lengths=ops.zeros(shape, "int32"),
            scores=none,
            finished=ops.zeros(shape, "bool"),
            open=self._request.starts < prompt,  # the others only fill the bucket
        )

    def advance(self, scores, step, state: State):
        logprobs, parents, tokens = self._expand(scores, step, state)  # [B, C] each
        rows = ops.take_along_axis(state.running, parents[:, :, None], axis=1)
        rows = ops.slice_update(rows, (0, 0, step), tokens[:, :, None])  # [B, C, N]
        over = ops.logical_or(ops.take(self._ends, tokens), step == self._request.max_new_tokens - 1)

        going_on = logprobs + ops.where(over, _NONE, 0.0)
        _, best = ops.top_k(going_on, self.width)
        running, next_logprobs = _take(rows, best), _take(going_on, best)

        sequences, lengths, final, finished = self._collect(logprobs, rows, over, step, state)
        state = State(running, next_logprobs, sequences, lengths, final, finished, state.open)
        state = state._replace(open=ops.logical_and(state.open, self._improvable(step, state)))
        return _take(tokens, best), _take(parents, best), state

    def unfinished(self, state: State):
        full = ops.logical_and(self._early, ops.all(state.finished, axis=-1))
        return ops.any(ops.logical_and(state.open, ops.logical_not(full)))

    def result(self, state: State) -> Result:
        return Result(state.sequences, state.lengths, state.scores)

    def _expand(self, scores, step, state: State):
        """The best (or drawn) continuations of all beams: log-probabilities, beams and tokens, `[B, C]` each."""
        r, vocab = self._request, scores.shape[-1]
        batch, rows = r.ids.shape[0], r.ids.shape[0] * self.width
        flat = ops.reshape(scores, (rows, vocab))
        flat = flat - ops.logsumexp(flat, axis=-1, keepdims=True)
        flat = self._process(flat, ops.reshape(state.running, (rows, self._new_tokens)), step)
        if self._sampling:
            ends = ops.sum(ops.cast(r.eos >= 0, "int32"))
            flat = samplers.keep(flat, r.temperature, r.top_k, r.top_p, r.min_p, ops.maximum(ends, 1) + 1)
        total = ops.reshape(flat, (batch, self.width, vocab)) + state.logprobs[:, :, None]
        total = ops.reshape(total, (batch, self.width * vocab))
        if not self._sampling:
            logprobs, index = ops.top_k(total, self._candidates)
        else:  # the largest of Gumbel-perturbed scores are a draw without replacement (Kool et al., 2019)
            uniform = random.uniform_each(r.seed, total.shape, step)
            _, index = ops.top_k(total - ops.log(-ops.log(uniform)), self._candidates)
            logprobs = ops.take_along_axis(total, index, axis=1)
        index = ops.cast(index, "int32")
        return logprobs, index // vocab, index % vocab

    def _collect(self, logprobs, rows, over, step, state: State):
        """The best `K` of the finished beams and of those that have just finished."""
        first = ops.arange(self._candidates, dtype="int32")[None] < self.width  # the rest are only spares
        just = ops.logical_and(over, first)
        final = logprobs / ops.cast(step + 1, "float32") ** self._request.length_penalty
        full = ops.logical_and(self._early, ops.all(state.finished, axis=-1))
        closed = ops.logical_or(full, ops.logical_not(state.open))[:, None]
        final = final + ops.where(closed, _NONE, 0.0) + ops.where(just, 0.0, _NONE)
        scores = ops.concatenate([state.scores, final], axis=1)
        _, best = ops.top_k(scores, self.width)
        lengths = ops.broadcast_to(step + 1, just.shape)
        pairs = ((state.sequences, rows), (state.lengths, lengths), (state.scores, final), (state.finished, just))
        return [_take(ops.concatenate(pair, axis=1), best) for pair in pairs]

    def _improvable(self, step, state: State):
        """Whether the best running beam may still beat a finished one, `[B]` bool."""
        r = self._request
        longest = ops.logical_and(r.early_stopping == 2, r.length_penalty > 0)
        length = ops.where(longest, r.max_new_tokens, step + 1)
        possible = state.logprobs[:, :1] / ops.cast(length, "float32") ** r.length_penalty
        worst = ops.where(state.finished, ops.min(state.scores, axis=1, keepdims=True), _NONE)
        return ops.any(possible > worst, axis=1)


def _take(x, index):
    """`x [B, C, ...]` at `index [B, K]`."""
    index = ops.cast(index, "int32")
    return ops.take_along_axis(x, ops.reshape(index, (*index.shape, *[1] * (len(x.shape) - 2))), axis=1)
