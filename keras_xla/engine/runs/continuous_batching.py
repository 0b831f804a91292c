"""A long list of prompts: a row whose completion has ended makes room for the next prompt.

So the rows of a batch need not wait for the slowest one, which is known as continuous batching (Yu et al., "Orca",
2022). Shapes stay as they are: prompts that come later run in a small state of their own, and are copied into the rows
that have become free.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_xla.backend import DeviceState
from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Limits, drawn_by, slots_of
from keras_xla.engine.call import Call
from keras_xla.engine.executables import Executables
from keras_xla.engine.keys import ContinuousKey, StateKey
from keras_xla.engine.padding import Rows
from keras_xla.engine.programs import Programs
from keras_xla.engine.runs.continuous_generation import FILLED_PART, Completed, ContinuousGeneration, filled_at_once
from keras_xla.engine.runs.deadline import Deadline, DeadlineReached
from keras_xla.engine.runs.generation import Pace, keys_on_the_way
from keras_xla.engine.runs.run import Stop, nothing, refuse_broken
from keras_xla.engine.runs.starter import AHEAD, Batch, request_of
from keras_xla.engine.states.prompt_runner import PromptRunner
from keras_xla.engine.states.state_pool import StatePool
from keras_xla.engine.warmup import FirstCall

# B batch, N rows that are filled at once


@dataclass(frozen=True)
class LongList:
    """Rows that take turns.

    Attributes:
        rows: Prompts, copies included.
        options: Theirs.
        size: Batch bucket.
        drawn_by: `(rows,)` int32, numbers on which what is drawn depends.
        stops: What ends each completion before.
    """

    rows: Rows
    options: GenerationOptions
    size: int
    drawn_by: np.ndarray
    stops: Sequence[Stop] = ()

    @functools.cached_property
    def longest(self) -> int:
        """Length of the longest prompt."""
        return max(map(len, self.rows))

    def seeded(self) -> "LongList":
        """With one seed for all that is asked for in turns."""
        if not self.options.do_sample or self.options.seed is not None:
            return self
        seed = int(np.random.randint(0, 2**63 - 1, dtype=np.int64))
        return dataclasses.replace(self, options=dataclasses.replace(self.options, seed=seed))

    def batch(self, numbers: np.ndarray) -> Batch:
        """The rows with these numbers `[B]`; -1 for those that nobody uses."""
        numbers = np.maximum(numbers, 0)
        prompts, options = [self.rows[i] for i in numbers], self.options.of_rows(numbers)
        return Batch(prompts, options, self.size, 0, [], None, numbers, self.drawn_by[numbers])


class ContinuousBatching:
    """Runs long lists with one model.

    Args:
        programs: What is compiled for it.
        executables: Of these programs.
        pool: Of states.
        prompt_runner: Runs its prompts.
        limits: On how many rows run at once.
    """

    def __init__(
        self,
        programs: Programs,
        executables: Executables,
        pool: StatePool,
        prompt_runner: PromptRunner,
        limits: Limits,
    ):
        self._programs, self._executables, self._pool = programs, executables, pool
        self._prompt_runner, self._limits = prompt_runner, limits
        self._paces: dict[ContinuousKey, Pace] = {}

    def worth_it(self, call: Call) -> LongList | None:
        """The rows of a call, if it takes less time to let them take turns."""
        rows, options, copies = call.prompts, call.options, call.copies
        if options.num_beams > 1 or options.guided or options.prompt_lookup_num_tokens or options.constrained:
            return None
        if not (options.eos_token_id or call.stops or isinstance(options.max_new_tokens, tuple)):
            return None  # all end together
        longest = max(map(len, rows), default=0)
        if not self._limits.cache.holds(slots_of(longest, options.most_new_tokens)):
            return None  # the longest prompt may not be the one with the longest answer
        size = self._limits.rows(longest, options, beside=1 / FILLED_PART)
        if len(rows) * copies < 2 * size or size < FILLED_PART:  # so few rows would need a state as large beside them
            return None
        asked = LongList(
            rows=[row for row in rows for _ in range(copies)],
            options=options.of_rows(np.repeat(np.arange(len(rows)), copies)),
            size=size,
            drawn_by=drawn_by(options, call.first_row + np.arange(len(rows) * copies)),
            stops=call.stops,
        )
        first, made = self._first_key(asked), self._executables
        return asked if made.may_compile or first in made.keys or made.kept.holds(first) else None

    def outputs(
        self, asked: LongList, call: Call, deadline: Deadline, report: Callable[[int], None]
    ) -> dict[str, np.ndarray]:
        """What `Generator` returns. With `call.skip_broken`, a broken row may break those that come after it, too.

        Args:
            asked: What `worth_it` returned.
            call: Of which that is.
            deadline: Ends the call before.
            report: Called with how many prompts have just been finished.

        Raises:
            ValueError: if logits are NaN.
        """
        options, finished, copies, key = call.options, 0, call.copies, self._state_key(asked)
        turns = self._turns(asked.seeded(), key, self._pool.take(key), call.skip_broken)
        with _SmallStates(self._pool, self._prompt_runner, turns.generation, deadline) as small:
            try:
                while turns.unfinished and not deadline.over:
                    turns.fill(small)
                    turns.generation.advance(seconds=deadline.seconds)
                    before, finished = finished, finished + turns.collect()
                    if prompts := finished // copies - before // copies:
                        report(prompts)
            except DeadlineReached:  # while prompts ran
                small.spoiled = turns.spoiled = True  # nobody knows what they have left in the cache
            completed = turns.close()  # raises for NaN, before a state goes back
            small.spoiled |= turns.spoiled
        made = nothing(len(asked.rows) // copies, options)
        for i, (tokens, score) in enumerate(completed):
            made["sequences"][i, : len(tokens)] = tokens
            made["lengths"][i], made["scores"][i] = len(tokens), score
        return made

    def first_calls(self, asked: LongList) -> Iterator[FirstCall]:
        """Of what a list of this size needs for all its tokens, at each size of the cache on the way."""
        executable, many = self._executable(asked), filled_at_once(asked.size)
        sizes = self._state_key(asked), self._limits.cache, asked.longest, asked.options.most_new_tokens
        smaller: tuple[StateKey, ...] = ()
        for key in keys_on_the_way(*sizes):
            small = StateKey(many, key.cache)
            run = functools.partial(self._first_turns, asked, key)
            yield FirstCall(self._executables, executable(key), run, (key, small, *smaller))
            if smaller or asked.longest > 1:
                yield self._prompt_runner.first_prefill(small)
            smaller = (key,)

    def _first_turns(
        self, asked: LongList, key: StateKey, state: DeviceState, small: DeviceState, *smaller: DeviceState
    ) -> None:
        for each in smaller:
            state.copy_from(each)  # JAX compiles for that, too
        turns = self._turns(asked, key, state)
        turns.fill(lambda slots, ids, starts: small)
        turns.generation.warm()

    def _first_key(self, asked: LongList) -> ContinuousKey:
        """Of the first executable that a list needs."""
        return self._executable(asked)(self._state_key(asked))

    def _state_key(self, asked: LongList) -> StateKey:
        slots = asked.longest + min(asked.options.most_new_tokens, AHEAD)
        return StateKey(asked.size, self._limits.cache.fit(slots))

    def _executable(self, asked: LongList) -> Callable[[StateKey], ContinuousKey]:
        _, rooms = self._request(asked, np.zeros((asked.size,), int))
        return lambda key: ContinuousKey(key.batch, key.cache, key.source, key.beams, *rooms)

    def _request(self, asked: LongList, numbers: np.ndarray):
        """What is asked for of the rows with these numbers, and what rooms it has; see `request_of`."""
        batch = asked.batch(numbers)
        lengths = np.array([len(prompt) for prompt in batch.prompts], np.int32)
        return request_of(self._programs, batch, asked.longest - lengths, asked.longest)

    def _turns(self, asked: LongList, key: StateKey, state: DeviceState, skip_broken: bool = False) -> "_Turns":
        executable = self._executable(asked)
        state.assign("search", state["search"]._replace(done=np.ones((asked.size,), bool)))
        generation = ContinuousGeneration(
            slot_axes=self._programs.slot_axes,
            executables=self._executables,
            pool=self._pool,
            caches=self._limits.cache,
            key=key,
            state=state,
            request=None,
            executable=executable,
            prompt_end=asked.longest,
            options=asked.options,
            step=0,
            pace=self._paces.setdefault(executable(key), Pace()),
            weights=self._executables.read_weights(),
        )
        return _Turns(asked, generation, self._request, skip_broken)


class _Turns:
    """Which rows of a batch work on what."""

    def __init__(self, asked: LongList, generation: ContinuousGeneration, request: Callable, skip_broken: bool):
        self._asked, self.generation, self._request, self._skip_broken = asked, generation, request, skip_broken
        # Long prompts first: what comes later finds room before the slot that the others have reached.
        self._waiting = deque(sorted(range(len(asked.rows)), key=lambda i: -len(asked.rows[i])))
        self._numbers = np.full((asked.size,), -1)
        self._made = [Completed(np.zeros((0,), np.int32), np.float32(0))] * len(asked.rows)
        self.spoiled = False  # whether logits were NaN: what is in the caches then could reach other rows

    @property
    def unfinished(self) -> bool:
        """Whether there is more to do."""
        return bool(self._waiting) or bool((self._numbers >= 0).any())

    def fill(self, run: Callable) -> None:
        """Give prompts that wait the free rows, as soon as it is worth it; see `ContinuousGeneration.begin`."""
        many, before = filled_at_once(self._asked.size), self._numbers.copy()
        while self._waiting and len(free := np.flatnonzero(self._numbers < 0)) >= many:
            rows = free[: min(many, len(self._waiting))]
            numbers = [self._waiting.popleft() for _ in rows]
            self.generation.begin(rows, [self._asked.rows[i] for i in numbers], run)
            self._numbers[rows] = numbers
        if (before != self._numbers).any():
            request, _ = self._request(self._asked, self._numbers)
            self.generation.ask(request)
        self.generation.enough = many if self._waiting else self._asked.size

    def collect(self) -> int:
        """Keep what has been finished; of how many rows."""
        busy: np.ndarray = np.flatnonzero(self._numbers >= 0)
        stops = self._asked.stops
        lengths: dict[int, int | None] = {row: None for row in busy if self.generation.done[row]}
        if stops:
            tokens = self.generation.tokens()
            found = {row: stops[self._numbers[row]].find(tokens[row]) for row in busy}
            lengths |= {row: length for row, length in found.items() if length is not None}
        for row, length in lengths.items():
            self._keep(row, length)
        return len(lengths)

    def close(self) -> list[Completed]:
        """What came of each row, the unfinished ones among them."""
        busy: np.ndarray = np.flatnonzero(self._numbers >= 0)
        for row in busy:
            self._keep(row)
        self.spoiled |= self.generation.spoiled
        if not self.spoiled:
            self.generation.close()
        return self._made

    def _keep(self, row: int, length: int | None = None) -> None:
        number, made = self._numbers[row], self.generation.completed(row, length)
        if np.isnan(made.score):
            if not self._skip_broken:
                refuse_broken([number])
            self.spoiled, made = True, made._replace(tokens=made.tokens[:0])
        self.generation.end(row)
        self._made[number], self._numbers[row] = made, -1


class _SmallStates:
    """Runs prompts in states of N rows."""

    def __init__(
        self, pool: StatePool, prompt_runner: PromptRunner, generation: ContinuousGeneration, deadline: Deadline
    ):
        self._pool, self._prompt_runner, self._deadline = pool, prompt_runner, deadline
        self._rows, self._weights = filled_at_once(generation.batch), generation.weights
        self._key: StateKey | None = None
        self._state: DeviceState | Any = None  # `Any`: None where there is no key
        self.spoiled = False

    def __call__(self, slots: int, ids: np.ndarray, starts: np.ndarray) -> DeviceState:
        """See `ContinuousGeneration.begin`."""
        if self._key is None or self._key.cache != slots:  # nobody gets the smaller one: it may hold NaN
            self._key, self._state = StateKey(self._rows, slots), None
            self._state = self._pool.take(self._key)
        known = min(int(starts.min()), ids.shape[1] - 1)
        self._prompt_runner.prefill(self._key, self._state, ids, starts, known, self._weights, self._deadline.check)
        return self._state

    def __enter__(self) -> "_SmallStates":
        return self

    def __exit__(self, error: type | None, *_) -> None:
        if error is None and self._key is not None and not self.spoiled:
            self._pool.give(self._key, self._state)
