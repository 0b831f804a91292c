"""One generation on its way: a state on the device, and how far it has come."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.backend import DeviceState
from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.executables import Executables
from keras_xla.engine.keys import AdvanceKey, StateKey
from keras_xla.engine.search.request import ROW_INTEGERS, Request
from keras_xla.engine.states.state_pool import StatePool

CALL_SECONDS = 0.5  # that a call of several runs takes: Python's part of it is below 1 %, and Ctrl-C waits no longer
_NO_BEAM, _NO_LOGITS = -1e8, -1e20  # log-probabilities below: of a beam that is not there; after logits that were NaN
_NO_ANSWER = np.float32(-1e9)  # the score of one that is missing
FIRST_COUNT = 8  # runs of a call while nobody knows how long one takes


class Pace:
    """How often one call of an executable runs the model."""

    def __init__(self) -> None:
        self._seconds: float | None = None  # of a run

    def count(self, most: float = CALL_SECONDS) -> int:
        """For the next call, which shall take at most so many seconds."""
        if self._seconds is None:
            return FIRST_COUNT if most == CALL_SECONDS else 1
        return max(1, int(most / self._seconds))

    def took(self, seconds: float, runs: int) -> None:
        """Learn from a call that compiled nothing."""
        self._seconds = seconds / runs


@dataclass(frozen=True)
class Found:
    """What a generation has made: B rows, K answers each, best first (1 without beams).

    Attributes:
        tokens: `[B, K, N]` int32; what stands behind a row's length is of no meaning.
        lengths: `[B, K]` int32.
        scores: `[B, K]` float32, the sum of log-probabilities, or a beam's score.
        broken: `[B]` bool, the rows whose logits were NaN.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    broken: np.ndarray


class Generation:
    """A generation whose prompts have been run.

    One thread at a time may use it.

    Args:
        executables: With `advance` of each `AdvanceKey`.
        pool: Where larger states come from, and this one goes at the end.
        caches: Cache buckets to move to; None where the state has room for all.
        key: Of the state.
        state: With the prompts in its cache.
        request: What is asked for.
        executable: From the key of a state to that of the executable which advances it.
        prompt_end: The slot of the first new token.
        options: What the request was made of.
        step: How many tokens there are.
        pace: Shared by the generations of one executable.
        progress: `sampling.Progress` after `step` tokens; None where there are none, and for beams.
        weights: The model's, from `Executables.read_weights`; by default those that it has at each call.

    Attributes:
        step: How many tokens a row has at most.
        prompt_end: The slot of the first new token.
        weights: The model's, with which it runs; None where each call reads them.
    """

    def __init__(
        self,
        executables: Executables,
        pool: StatePool,
        caches: Buckets | None,
        key: StateKey,
        state: DeviceState,
        request: Request,
        executable: Callable[[StateKey], AdvanceKey],
        prompt_end: int,
        options: GenerationOptions,
        step: int,
        pace: Pace,
        progress: Any = None,
        weights: list | None = None,
    ):
        self._executables, self._pool = executables, pool
        self._caches: Buckets | Any = caches  # `Any`: None where it cannot grow
        self._key, self._state, self._request, self._executable = key, state, request, executable
        self.prompt_end, self._options, self._pace = prompt_end, options, pace
        self.step = step
        self._more = step < options.most_new_tokens
        self._progress = progress
        self.weights: list | Any = weights  # `Any`: None where each call reads them
        self._stopped: dict[int, int] = {}

    @property
    def starts(self) -> np.ndarray:
        """`[B]` int32, each row's first real slot."""
        return ops.convert_to_numpy(self._request.row_integers)[ROW_INTEGERS.index("starts")]

    @property
    def batch(self) -> int:
        """Rows, with those that fill the bucket."""
        return self._key.batch

    @property
    def unfinished(self) -> bool:
        """Whether a row needs more tokens."""
        if not self._more or not self._stopped:
            return self._more
        done = np.zeros((self.batch,), bool) if self._progress is None else ops.convert_to_numpy(self._progress.done)
        return any(not over and row not in self._stopped for row, over in enumerate(done))

    @property
    def spoiled(self) -> bool:
        """Whether logits were NaN, be it of a token behind a row's end: then there is NaN in the cache.

        Before the first step nobody knows what the prompts have left there.
        """
        if not self.step:
            return True
        values = map(ops.convert_to_numpy, keras.tree.flatten(self._state["search"]))
        return any(np.isnan(each).any() for each in values if each.dtype.kind == "f")  # log-probabilities, scores

    def advance(self, count: int | None = None, seconds: float = CALL_SECONDS) -> None:
        """Run the model `count` times, for a token a row each; by default as often as fits into `seconds`."""
        count = self._pace.count(seconds) if count is None else count
        if self._furthest >= self._room:
            self._make_room()
        key, start = self._executable(self._key), time.perf_counter()
        waits = self._executables.compiles(key)
        runs = self._run(key, count)
        if runs and not waits:
            self._pace.took(time.perf_counter() - start, runs)

    def _run(self, key: Any, count: int) -> int:
        """Call the executable of a key, an `AdvanceKey`, for at most `count` runs of the model; how many it made."""
        before = self.step
        limits = backend.to_device(np.array([self.step, min(count, self._room - self.step)], np.int32))
        step, more, self._progress = self._executables(key, self._state, self._request, limits, weights=self.weights)
        self.step, self._more = int(step), bool(more)
        return self.step - before

    def rows(self) -> list[tuple[np.ndarray, bool]]:
        """Of each row the new tokens so far, and whether there will be no others; not for beams."""
        if self._progress is None:
            return [(np.zeros((0,), np.int32), False)] * self._key.batch
        tokens, lengths, done = map(ops.convert_to_numpy, self._progress)
        made = []
        for row, over in enumerate(done):
            length = min(lengths[row], self._stopped.get(row, lengths[row]))
            new = tokens[row, self.prompt_end : self.prompt_end + length]
            made.append((new, over or row in self._stopped or not self._more))
        return made

    def allow(self, tokens: np.ndarray) -> None:
        """Say what may come next: a bit for each token, `[B, V / 32]` int32; not for beams."""
        extras = {**self._request.extras, "allowed": backend.to_device(tokens)}
        self._request = self._request._replace(extras=extras)

    def stop(self, row: int, length: int) -> None:
        """End a row behind its first `length` new tokens; not for beams."""
        self._stopped[row] = length

    def found(self) -> Found:
        """What there is, whether it is finished or not."""
        if not self.step:  # what the state says is of an earlier generation
            none = np.zeros((self._key.batch, self._key.beams), np.int32)
            return Found(none[..., None][..., :0], none, none.astype(np.float32), np.zeros((self._key.batch,), bool))
        state = self._state["search"]
        new = slice(self.prompt_end, self.prompt_end + self.step)
        if self._key.beams > 1:
            return _best_beams(state, new, self.step, self._options, cut_off=self._more)
        lengths = ops.convert_to_numpy(state.lengths)
        lengths = np.array([min(n, self._stopped.get(row, n)) for row, n in enumerate(lengths)], np.int32)
        counted = np.arange(self.step) < lengths[:, None]
        scores = np.where(counted, ops.convert_to_numpy(state.logprobs)[:, new], 0).sum(axis=1, dtype=np.float32)
        tokens = ops.convert_to_numpy(state.tokens)[:, new]
        return Found(tokens[:, None], lengths[:, None], scores[:, None], np.isnan(scores))

    def warm(self) -> None:
        """Compile what makes tokens; no result is of use."""
        self._run(self._executable(self._key), 1)

    def close(self) -> None:
        """Hand the state back; nothing else may be asked."""
        state, self._state, self.weights = self._state, None, None
        self._pool.give(self._key, state)

    def release(self) -> tuple[StateKey, DeviceState, np.ndarray]:
        """Let go of the state: its key, it, and the tokens `[B, S]` that stand in its cache, S slots from the first."""
        (key, state), self._state, self.weights = (self._key, self._state), None, None
        shown = state["search"].tokens if key.beams == 1 and self.step else state["tokens"]
        # The newest token has been chosen, but not run.
        run = self.prompt_end - 1 + (self.step if key.beams == 1 else 0)
        return key, state, ops.convert_to_numpy(shown)[:, :run]

    @property
    def _furthest(self) -> int:
        """Tokens of the unfinished row that has the most."""
        return self.step

    @property
    def _room(self) -> int:
        """How many tokens the cache can hold; the prompts' last token runs with the new ones."""
        return _room(self._key, self.prompt_end, self._caches is not None)

    def _make_room(self) -> None:
        self._grow()

    def _grow(self) -> None:
        key = _larger(self._key, self._caches)
        state = self._pool.take(key)
        state.copy_from(self._state)
        if not self.spoiled:
            self._pool.give(self._key, self._state)
        self._key, self._state = key, state


def keys_on_the_way(key: StateKey, caches: Buckets | None, prompt_end: int, most: int) -> Iterator[StateKey]:
    """Of the states in which `most` tokens are made, from the first one on; arguments as for `Generation`."""
    yield key
    while caches is not None and _room(key, prompt_end, grows=True) < most:
        yield (key := _larger(key, caches))


def _room(key: StateKey, prompt_end: int, grows: bool) -> int:
    behind = key.cache - prompt_end
    # Beams that share a cache have a slot each for every token.
    return min((behind + 1) // key.beams, behind) if grows else behind


def _larger(key: StateKey, caches: Buckets) -> StateKey:
    return dataclasses.replace(key, cache=caches.fit(key.cache + 1))


def _best_beams(state: Any, new: slice, step: int, options: GenerationOptions, cut_off: bool) -> Found:
    """The best of the finished beams; and of the running ones, where a search was cut off or none has finished."""
    state = keras.tree.map_structure(ops.convert_to_numpy, state)
    running, logprobs, tokens, lengths, scores, finished, searching, left_running, left_finished = state
    width = scores.shape[1]
    if options.early_stopping is True:
        searching = searching & ~finished.all(axis=1)
    with np.errstate(all="ignore"):
        ended = logprobs / np.float32(max(step, 1)) ** np.float32(options.length_penalty)
        compete = ((cut_off & searching) | ~finished.any(axis=1))[:, None] & (logprobs > _NO_BEAM)
        rank = np.concatenate([np.where(finished, scores, -np.inf), np.where(compete, ended, -np.inf)], axis=1)
        broken = np.isnan(logprobs).any(axis=1) | np.isnan(scores[:, 0])
        scores = np.where(finished, scores, _NO_ANSWER)
    best = np.argsort(-rank, axis=1, kind="stable")[:, :width]
    # All tokens may be forbidden behind a beam: that ends the search, where another one has finished.
    dead = (logprobs[:, 0] < _NO_LOGITS) & ~finished.any(axis=1)

    def taken(done, going_on):
        both = np.concatenate([done, going_on], axis=1)
        return np.take_along_axis(both, best.reshape(*best.shape, *[1] * (both.ndim - 2)), axis=1)

    made, chosen = taken(lengths, np.full_like(lengths, step)), taken(scores, ended)
    if len(left_finished):  # then the scores are of another distribution, those of the same beams
        power = np.maximum(made, 1).astype(np.float32) ** np.float32(options.length_penalty)
        means = taken(left_finished, left_running) / power
        chosen = np.where(np.take_along_axis(rank, best, axis=1) > -np.inf, means, chosen)
    return Found(
        taken(tokens, running)[..., new],
        made,
        chosen,
        broken | dead,
    )
