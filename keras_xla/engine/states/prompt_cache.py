"""Prompts that stand in a cache already, for others that begin as they do."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.backend import DeviceState
from keras_xla.engine.keys import StateKey
from keras_xla.engine.runs.generation import Generation
from keras_xla.engine.states.state_pool import StatePool

# B batch, S slots that hold tokens, L length of the prompts


@dataclass(frozen=True)
class CachedPrompt:
    """The state of a generation that has ended.

    Attributes:
        key: Of the state.
        state: With keys and values of the tokens in its cache.
        tokens: `[B, S]` int32, what stands in each slot; -1 in rows that only fill the bucket.
        starts: `[B]` int32, each row's first real slot.
        weights: Those that ran the tokens, from `backend.read_weights`.
    """

    key: StateKey
    state: DeviceState
    tokens: np.ndarray
    starts: np.ndarray
    weights: list

    @classmethod
    def of(cls, generation: Generation) -> "CachedPrompt":
        """The state of a generation that nobody advances any more."""
        starts, weights = generation.starts, generation.weights
        real = starts < generation.prompt_end  # the others only fill the bucket
        key, state, tokens = generation.release()
        return cls(key, state, np.where(real[:, None], tokens, -1), starts, weights)

    def broken(self) -> np.ndarray:
        """The numbers of the rows in whose cache a value is NaN."""
        rows = np.zeros((self.key.batch,), bool)
        for leaf in keras.tree.flatten(self.state["cache"]):
            if keras.backend.is_float_dtype(keras.backend.standardize_dtype(leaf.dtype)):
                values = ops.convert_to_numpy(leaf)
                rows |= np.isnan(values).reshape(self.key.batch, -1).any(axis=1)
        return np.flatnonzero(rows)

    def begins(
        self, key: StateKey, chunk: int, ids: np.ndarray, starts: np.ndarray, free: bool
    ) -> "PrefixMatch | None":
        """How much of these prompts is here; None for nothing of use.

        Arguments as for `PromptCache.take`, and whether the state is `free` for the caller to take.
        """
        batch, length = key.batch, ids.shape[1] - 1
        real: np.ndarray = np.flatnonzero(starts < ids.shape[1])
        rows, known = np.zeros((batch,), np.int32), np.zeros((batch,), np.int32)
        for row in real:
            # The last token of a prompt runs with the new ones.
            rows[row], known[row] = self._most_alike(row, ids[row, starts[row] : -1])
        slots = int((starts + known)[real].min())  # every row has to know what stands before
        if slots <= int(starts.min()):  # nothing but padding
            return None
        shifts = starts - self.starts[rows]
        still = batch == self.key.batch and (rows == np.arange(batch))[real].all() and not shifts[real].any()
        if not (still and free) and -(-length // chunk) == -(-(length - slots) // chunk):
            return None  # a copy would save no work
        return PrefixMatch(self, rows, shifts.astype(np.int32), slots, bool(still), free)

    def _most_alike(self, row: int, prompt: np.ndarray) -> tuple[int, int]:
        """Which row begins most like a prompt, of equals the one of the same number, and with how many tokens."""
        common = [_common(prompt, tokens[start:]) for tokens, start in zip(self.tokens, self.starts, strict=True)]
        best = max(common)
        return (row if row < len(common) and common[row] == best else common.index(best)), best


@dataclass(frozen=True)
class PrefixMatch:
    """What of a kept state serves new prompts.

    Attributes:
        kept: The state.
        rows: `[B]` int32, the row of it that each prompt begins like.
        shifts: `[B]` int32, by how many slots that row has to move.
        slots: How many slots, from the first on, hold the prompts then.
        still: Whether all rows stand where they are needed.
        free: Whether the state is the caller's, to use or to give away.
    """

    kept: CachedPrompt
    rows: np.ndarray
    shifts: np.ndarray
    slots: int
    still: bool
    free: bool


class SavedPrompt:
    """Prompts that were run once, for all calls whose prompts begin as one of them; `save_prompt` of a layer makes it.

    Pass it as `reuse_prompt` to `generate`, `stream` or `chat` of the layer that saved it. It holds the keys and values
    of the prompts in memory for as long as it is kept. Threads may share it. It is of no more use once a weight
    was assigned to: the next call then lets go of what it holds. It is an error once the layer was quantized. Its
    methods are for the engine; nobody else needs to call them.

    Args:
        kept: The state with the prompts in its cache.
        pool: The pool of states of the generator that ran them.
        variables: The variables of the model.
    """

    def __init__(self, kept: CachedPrompt, pool: StatePool, variables: Sequence[keras.Variable]):
        self._kept: CachedPrompt | None = kept
        self._pool, self._variables = pool, variables

    def serve(self, pool: StatePool, variables: Sequence[keras.Variable]) -> None:
        """Check that a generator may use the prompts; the engine calls it.

        Args:
            pool: The pool of states of that generator.
            variables: The variables of its model.

        Raises:
            ValueError: Another layer saved the prompts, or this one before it was quantized.
        """
        if pool is not self._pool:
            raise ValueError(
                "Received a prompt that another layer saved, or this layer before it was quantized. Save it again with "
                "layer.save_prompt(...)."
            )

    def take(self, key: StateKey, chunk: int, ids: np.ndarray, starts: np.ndarray) -> PrefixMatch | None:
        """Find the saved prompts that new ones begin with; the engine calls it.

        Args:
            key: The key of the state that is needed.
            chunk: How many tokens of a prompt run at once.
            ids: `(batch, length)` int32, prompts that end together.
            starts: `(batch,)` int32, where each begins; `length` in rows that only fill the batch bucket.

        Returns:
            What of the saved state serves the new prompts; None where nothing does, or a weight has changed.
        """
        kept = self._kept
        if kept is not None and not backend.same_weights(self._variables, kept.weights):
            kept = self._kept = None  # of no use any more, and it holds all weights of then
        return None if kept is None else kept.begins(key, chunk, ids, starts, free=False)

    def close(self, generation: Generation) -> None:
        """Let go of a generation that has ended, of which nothing is kept; the engine calls it.

        Args:
            generation: The generation.
        """
        generation.close()


class PromptCache:
    """The state of the last generation that was put here, for as long as the pool has room for it.

    Threads may share it: a state that one of them has taken is not there for the others, who run their prompts whole.

    Args:
        pool: Keeps the state.
        variables: The model's.
        saved: What serves while there is no such state.
    """

    def __init__(self, pool: StatePool, variables: Sequence[keras.Variable], saved: SavedPrompt | None = None):
        self._pool, self._variables, self._saved = pool, variables, saved
        self._lock = threading.Lock()

    def serve(self, pool: StatePool, variables: Sequence[keras.Variable]) -> None:
        """Be of use to the generator that has these from now on; what another one's model left is let go of."""
        with self._lock:
            if pool is self._pool:
                return
            before, self._saved = self._pool, None
            self._pool, self._variables = pool, variables
        if (kept := before.take_kept(self)) is not None:
            before.give(kept.key, kept.state)

    def take(self, key: StateKey, chunk: int, ids: np.ndarray, starts: np.ndarray) -> PrefixMatch | None:
        """A state whose cache holds the prompts' beginnings.

        The weights have to be those of then.

        Args:
            key: Of the state that is needed. Beams have slots of their own, and nothing is taken for them.
            chunk: Tokens of a prompt that run at once.
            ids: `[B, L]` int32, prompts that end together.
            starts: `[B]` int32, each row's first real slot; L for rows that only fill the bucket.

        Returns:
            None where there is nothing.
        """
        if key.beams > 1:
            return None
        with self._lock:
            pool, variables, saved = self._pool, self._variables, self._saved

        def useless(kept: CachedPrompt | None) -> bool:
            return kept is not None and not backend.same_weights(variables, kept.weights)

        kept = pool.take_kept(self)
        stale = useless(kept)
        if stale or (kept is None and useless(pool.latest_kept())):  # others, too: each holds all weights of then
            pool.drop_kept(useless)
        if kept is None:
            return None if saved is None else saved.take(key, chunk, ids, starts)
        begun = None if stale else kept.begins(key, chunk, ids, starts, free=True)
        if begun is None:
            pool.give(kept.key, kept.state)
        return begun

    def close(self, generation: Generation) -> None:
        """Take over the state of a generation that has ended, instead of `generation.close()`."""
        kept = CachedPrompt.of(generation)
        if kept.key.beams > 1:  # beams have slots of their own
            self._pool.give(kept.key, kept.state)
        else:
            self._pool.keep(self, kept)


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two rows begin with alike."""
    length = min(len(a), len(b))
    return int(np.logical_and.accumulate(a[:length] == b[:length]).sum())
