"""A generation whose rows begin at different times: one that has ended makes room for another prompt.

All rows write to one slot of the cache; a prompt is put before it, wherever it is by then. When the cache is full its
rows move to its beginning, and it grows only if the longest of them needs that.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.backend import DeviceState
from keras_xla.engine.keys import ContinuousKey
from keras_xla.engine.padding import Rows
from keras_xla.engine.runs.generation import Generation
from keras_xla.engine.search.request import Request

# B batch, N rows that are filled at once, P slots of the longest prompt, T cache slots

FILLED_PART = 4  # of a batch: a prompt that runs alone takes nearly as long as several


class Completed(NamedTuple):
    """What a row has made."""

    tokens: np.ndarray  # (n,) int32, new ones
    score: np.float32  # the sum of their log-probabilities; NaN where logits were


class ContinuousGeneration(Generation):
    """See above; at first no row is in use.

    Args:
        slot_axes: See `Programs`.
        **generation: See `Generation`; `prompt_end` is P.

    Attributes:
        done: `[B]` bool, rows that have ended or that nobody uses.
        enough: How many of them end a call.
    """

    def __init__(self, *, slot_axes: list, **generation):
        super().__init__(**generation)
        row = (self.batch,)
        self.done, self.enough = np.ones(row, bool), self.batch
        self._spoiled = False  # by a row whose place another one has taken
        self._slot_axes, self._slot = slot_axes, 0  # of each row's last token, which has not been run
        self._cache_starts, self._prompts, self._lengths = (
            np.zeros(row, np.int32),
            np.zeros(row, int),
            np.zeros(row, int),
        )

    @property
    def spoiled(self) -> bool:
        """See `Generation.spoiled`."""
        return self._spoiled or super().spoiled

    def begin(self, rows: np.ndarray, prompts: Rows, run: Callable[[int, np.ndarray, np.ndarray], DeviceState]) -> None:
        """Begin prompts in rows that are done; `ask` has to follow.

        Args:
            rows: `(n,)` ints.
            prompts: One for each.
            run: From T, ids `[N, slots]` that end together, and where each begins `[N]`, to a state of N rows that has
                read all but the last.
        """
        self._spoiled = self.step > 0 and self.spoiled  # before, no row has ended
        self._move(max([0 if self.done.all() else self._slot, *(len(prompt) - 1 for prompt in prompts)]))
        each: np.ndarray = np.resize(np.arange(len(rows)), filled_at_once(self.batch))  # some twice: shapes stay
        ids = np.zeros((len(each), self._slot + 1), np.int32)
        lengths = np.array([len(prompts[i]) for i in each], np.int32)
        for row, i in zip(ids, each, strict=True):
            row[len(row) - len(prompts[i]) :] = prompts[i]
        starts = self._slot + 1 - lengths
        self._state.put_rows("cache", run(self._key.cache, ids, starts), rows[each], self.batch)
        self._cache_starts[rows[each]], self._prompts[rows[each]] = starts, lengths
        self._lengths[rows], self.done[rows] = 0, False
        search, chosen = self._host("search"), self._host("chosen")
        for row, prompt in zip(rows, prompts, strict=True):
            search.tokens[row, self.prompt_end - len(prompt) : self.prompt_end] = prompt
            chosen[row] = prompt[-1]
        search.logprobs[rows] = 0
        self._state.assign("search", search._replace(done=self.done, lengths=self._lengths))
        self._state.assign("chosen", chosen)

    def ask(self, request: Request) -> None:
        """Go on with what is asked for of the rows that there are now."""
        request = request._replace(extras={**request.extras, "cache_starts": self._cache_starts})
        self._request = keras.tree.map_structure(backend.to_device, request)

    def completed(self, row: int, length: int | None = None) -> Completed:
        """What a row has made, or the first `length` tokens of it."""
        length = self._lengths[row] if length is None else length
        new = slice(self.prompt_end, self.prompt_end + length)
        state = self._state["search"]
        tokens, logprobs = (ops.convert_to_numpy(x)[row, new] for x in (state.tokens, state.logprobs))
        return Completed(tokens.copy(), logprobs.sum(dtype=np.float32))  # a view would keep all rows in memory

    def tokens(self) -> list[np.ndarray]:
        """The new tokens of each row, those of unused ones among them."""
        tokens = ops.convert_to_numpy(self._progress.tokens)
        ends = self.prompt_end + self._lengths
        return [row[self.prompt_end : end] for row, end in zip(tokens, ends, strict=True)]

    def end(self, row: int) -> None:
        """Let nobody use a row any more."""
        if not self.done[row]:
            self.done[row] = True
            self._state.assign("search", self._state["search"]._replace(done=self.done))

    def _run(self, key: ContinuousKey, count: int) -> int:
        count = min(count, self._key.cache - self._slot, self._room - self._longest)
        inputs = backend.to_device(np.array([self._slot, count, self.enough], np.int32))
        told, self._progress = self._executables(key, self._state, self._request, inputs, weights=self.weights)
        runs = int(told)
        self._slot, self.step = self._slot + runs, self.step + runs
        _, lengths, done = self._progress
        self._lengths, self.done = (np.array(ops.convert_to_numpy(x)) for x in (lengths, done))
        return runs

    @property
    def _longest(self) -> int:
        """New tokens of the row that has the most, of those in use."""
        return int(self._lengths[~self.done].max(initial=0))

    @property
    def _furthest(self) -> int:
        return max(self._slot - self.prompt_end, self._longest)

    def _make_room(self) -> None:
        self._move(int((self._prompts + self._lengths)[~self.done].max(initial=1)) - 1)
        if self._furthest >= self._room:
            self._grow()

    def _move(self, slot: int) -> None:
        """Move all rows, so that the last token of each goes to a slot."""
        if (shift := slot - self._slot) and not self.done.all():
            rows, shifts = np.arange(self.batch, dtype=np.int32), np.full((self.batch,), shift, np.int32)
            self._state.copy_rows("cache", self._state, self._slot_axes, rows, shifts, self.batch)
            starts = np.clip(self._cache_starts + shift, 0, slot)  # rows that nobody uses may begin anywhere
            self._cache_starts = starts.astype(np.int32)
            self._request.extras["cache_starts"] = backend.to_device(self._cache_starts)
        self._slot = slot

    def _host(self, name: str):
        """What is called so in the state, as arrays that can be written to."""
        return keras.tree.map_structure(lambda x: np.array(ops.convert_to_numpy(x)), self._state[name])


def filled_at_once(size: int) -> int:
    """N, for a batch of `size` rows."""
    return max(size // FILLED_PART, 1)
