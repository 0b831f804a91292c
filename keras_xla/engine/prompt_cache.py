"""What an earlier generation left in its cache, for a prompt that begins as that one did."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np

from keras_xla import backend
from keras_xla.backend import DeviceState
from keras_xla.engine.generation import Generation, StateKey
from keras_xla.engine.state_pool import StatePool

# B batch, S slots that hold tokens, L length of the prompts


@dataclass(frozen=True)
class _Kept:
    key: StateKey
    state: DeviceState
    tokens: np.ndarray  # [B, S] int32
    starts: np.ndarray  # [B] int32, each row's first real slot
    weights: list  # those that ran the tokens, from `backend.read_weights`


class PromptCache:
    """The state of the last generation that was put here.

    Threads may share it: a state that one of them has taken is not there for the others, who run their prompts whole.

    Args:
        pool: Where states go that are of no use any more.
        variables: The model's.
    """

    def __init__(self, pool: StatePool, variables: Sequence[keras.Variable]):
        self._pool, self._variables = pool, variables
        self._kept, self._lock = None, threading.Lock()

    def serve(self, pool: StatePool, variables: Sequence[keras.Variable]) -> None:
        """Be of use to the generator that has these from now on; what another one's model left is let go of."""
        with self._lock:
            if pool is self._pool:
                return
            kept, before, self._kept = self._kept, self._pool, None
            self._pool, self._variables = pool, variables
        if kept is not None:
            before.give(kept.key, kept.state)

    def take(self, batch: int, ids: np.ndarray, starts: np.ndarray) -> tuple[StateKey, DeviceState, int] | None:
        """A state whose cache begins like the prompts, and how many slots of it can stay.

        The weights have to be those of then, and the rows have to begin at the slots of then, which a single row
        always does.

        Args:
            batch: Batch bucket.
            ids: `[B, L]` int32, prompts that end together.
            starts: `[B]` int32, each row's first real slot; L for rows that only fill the bucket.

        Returns:
            The state's key, the state, and the number of slots; None where nothing can stay.
        """
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None:
            return None
        real = starts < ids.shape[1]
        common = 0
        begins_there = kept.key.batch == batch and (kept.starts == starts)[real].all()
        if begins_there and backend.same_weights(self._variables, kept.weights):
            length = min(kept.tokens.shape[1], ids.shape[1] - 1)  # the last token of a prompt runs with the new ones
            equal = (kept.tokens[:, :length] == ids[:, :length])[real].all(axis=0)
            common = int(np.logical_and.accumulate(equal).sum())
        if common <= int(starts.min()):  # nothing but padding
            self._pool.give(kept.key, kept.state)
            return None
        return kept.key, kept.state, common

    def put(self, generation: Generation, starts: np.ndarray, weights: list) -> None:
        """Take over the state of a generation that has ended, instead of `generation.close()`.

        Args:
            generation: Of a decoder-only model, whose prompts ran in chunks.
            starts: `[B]` int32, each row's first real slot.
            weights: Those that it ran with.
        """
        key, state, tokens = generation.release()
        if key.beams > 1:  # beams have slots of their own
            self._pool.give(key, state)
            return
        with self._lock:
            before, self._kept = self._kept, _Kept(key, state, tokens, starts, weights)
        if before is not None:
            self._pool.give(before.key, before.state)
