"""A batch of prompts, from ids to a run whose prompts are in the cache."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_xla import backend
from keras_xla.backend import DeviceState
from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import slots_of
from keras_xla.engine.buckets import WHOLE_PROMPTS, Buckets
from keras_xla.engine.executables import Executables
from keras_xla.engine.keys import AdvanceKey, PrefillWholeKey, SpeculateKey, StateKey
from keras_xla.engine.padding import Rows, pad_left, pad_more
from keras_xla.engine.programs import Programs
from keras_xla.engine.runs.deadline import Deadline
from keras_xla.engine.runs.generation import Generation, Pace, keys_on_the_way
from keras_xla.engine.runs.run import Guide, Run, allowed
from keras_xla.engine.runs.speculation import RunTimes, Speculation
from keras_xla.engine.search.guidance import guidance_tensors
from keras_xla.engine.search.request import Request, eos_room, make_request
from keras_xla.engine.search.speculate import sizes_of
from keras_xla.engine.states.prompt_cache import PromptCache, SavedPrompt
from keras_xla.engine.states.prompt_runner import PromptRunner
from keras_xla.engine.states.state_pool import StatePool
from keras_xla.engine.warmup import FirstCall, cores

if TYPE_CHECKING:
    from keras_xla.engine.generator import Generator

# B batch, L length of the prompts

AHEAD = 32  # new tokens that a cache has room for from the start
AHEAD_BYTES = 2**28  # that a state may hold for an executable to be compiled beside another one


@dataclass(frozen=True)
class Batch:
    """Rows that run together.

    Attributes:
        prompts: One for each row; empty ones are idle.
        options: Theirs.
        size: Batch bucket.
        source: Length of what an encoder-decoder reads; 0 without.
        sources: What `PromptRunner.sources` returned.
        negative: Negative prompts, one for each row; None without guidance.
        numbers: `(rows,)` ints, by which errors call them.
        drawn_by: `(rows,)` int32, numbers on which what is drawn depends.
        guides: What leads each row.
        reuse: Where the prompts' beginnings may stand already, and where they are put.
        assistant: Guesses tokens.
        skip_broken: Whether a row whose guide lets nothing follow costs the others nothing.
    """

    prompts: Rows
    options: GenerationOptions
    size: int
    source: int
    sources: list
    negative: Rows | None
    numbers: np.ndarray
    drawn_by: np.ndarray
    guides: Sequence[Guide | None] = ()
    reuse: PromptCache | SavedPrompt | None = None
    assistant: "Generator | None" = None
    skip_broken: bool = False

    @property
    def guesses(self) -> int:
        """Tokens a row that are guessed at once."""
        options = self.options
        return options.prompt_lookup_num_tokens if self.assistant is None else options.num_assistant_tokens

    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Prompts that end together `[B, L]` int32, and where each begins `[B]` int32; behind them negative ones."""
        rows, size = self.prompts, self.size
        if self.negative is not None:
            rows, size = [*rows, *[rows[0][:0]] * (size - len(rows)), *self.negative], 2 * size
        return pad_left(rows, size, self.options.fill)


@dataclass(frozen=True)
class _Prepared:
    """A batch, and what its executables take beside a state.

    Attributes:
        batch: The batch.
        ids: `[R, L]` int32, its prompts, padded; for guidance negative ones behind them.
        starts: `[R]` int32, where each begins.
        key: Of the smallest state that will do.
        request: What is asked for, in tensors.
        executable: From the key of a state to that of the executable which advances it.
        weights: The model's.
        draft_weights: The assistant's, if there is one.
    """

    batch: Batch
    ids: np.ndarray
    starts: np.ndarray
    key: StateKey
    request: Request
    executable: Callable[[StateKey], AdvanceKey]
    weights: list
    draft_weights: list

    @property
    def prompt_end(self) -> int:
        """The slot of the first new token."""
        return self.ids.shape[1]

    @property
    def whole(self) -> PrefillWholeKey:
        """Of the executable that runs the prompts whole."""
        return PrefillWholeKey(**dataclasses.asdict(self.executable(self.key)), prompt=self.prompt_end)


class Starter:
    """Starts the generations of one model.

    Args:
        programs: What is compiled for it.
        executables: Of these programs.
        pool: Of states.
        prompt_runner: Runs its prompts.
        cache: Buckets of the cache.
        most_bytes: That all caches of a batch may hold.
    """

    def __init__(
        self,
        programs: Programs,
        executables: Executables,
        pool: StatePool,
        prompt_runner: PromptRunner,
        cache: Buckets,
        most_bytes: int,
    ):
        self._programs, self._executables, self._pool = programs, executables, pool
        self._prompt_runner, self._cache, self._most_bytes = prompt_runner, cache, most_bytes
        self._ahead: set[AdvanceKey] = set()  # what was compiled beside something else
        self._lock = threading.Lock()
        self._paces: dict[AdvanceKey, Pace] = {}
        self._run_times: dict[SpeculateKey, RunTimes] = {}

    def __call__(self, batch: Batch, deadline: Deadline | None = None, goes_on: bool = False) -> Run:
        """A generation with the prompts in its cache; `goes_on` tells whether tokens are made at once.

        Raises:
            DeadlineReached: if `deadline` is over before that; the state is let go of then.
        """
        deadline = Deadline() if deadline is None else deadline
        deadline.check()
        asked, progress = self._prepared(batch), None
        # A model whose cache is not ours makes a token with the prompt, and may be done then; or the time may be over.
        if goes_on and self._programs.chunked and not deadline.of_time:
            self._compile_ahead(asked)
        ids, starts, weights = asked.ids, asked.starts, asked.weights
        reuse = None if asked.key.guided else batch.reuse  # what stays of a prompt is one row of a cache
        key, state, known = self._prompt_runner.state(asked.key, batch.sources, ids, starts, reuse, weights)
        self._put_prompts(asked, key, state)
        if self._programs.chunked:
            self._prompt_runner.prefill(key, state, ids, starts, known, weights, deadline.check)
        else:
            progress = self._run_whole(asked, state) or None
        busy = np.array([len(prompt) > 0 for prompt in batch.prompts])
        generation = self._generation(asked, key, state, progress)
        close = Generation.close if reuse is None else reuse.close
        return Run(generation, batch.options, busy, batch.numbers, self._programs.words, close)

    def _compile_ahead(self, asked: _Prepared) -> None:
        """Compile what makes tokens beside what runs the prompts, if neither is there: XLA hardly uses two cores."""
        executables, key = self._executables, asked.executable(asked.key)
        if not executables.compiles(key) or not executables.may_compile or cores() < 2:
            return
        advance, *others = self._calls_of(asked)  # from here on it is known what a state holds for an encoder
        if self._programs.state_bytes(asked.key) > min(AHEAD_BYTES, self._most_bytes // 2):
            return
        with self._lock:  # of several threads, one compiles it
            if key in self._ahead or not any(executables.compiles(call.key) for call in others):
                return
            self._ahead.add(key)
        settings = backend.thread_settings()

        def compile_it() -> None:
            # If it fails, so does the generation, which then says why.
            with contextlib.suppress(Exception), backend.with_thread_settings(settings), executables.warming():
                advance.run(*map(self._programs.new_state, advance.states))

        # No daemon: a process that ended within XLA would crash. Another Ctrl-C ends it all the same.
        threading.Thread(target=compile_it, name=f"compile {advance.key}").start()

    def _calls_of(self, asked: _Prepared) -> Iterator[FirstCall]:
        """Of what a batch needs at the first size of its cache: of what makes tokens, and of what runs before it."""
        yield from self._first_calls_at(asked, asked.key)
        if asked.batch.sources:
            yield self._prompt_runner.first_remember(asked.key, asked.batch.sources)

    def first_calls(self, batch: Batch) -> Iterator[FirstCall]:
        """Of what a batch of this size needs, however many of its tokens are made, at each size of the cache."""
        asked, chunked = self._prepared(batch), self._programs.chunked
        if batch.sources:
            yield self._prompt_runner.first_remember(asked.key, batch.sources)
        sizes = asked.key, self._cache if chunked else None, asked.prompt_end, batch.options.most_new_tokens
        smaller: tuple[StateKey, ...] = ()
        for key in keys_on_the_way(*sizes):
            yield from self._first_calls_at(asked, key, smaller)
            smaller = (key,)
        # What is to make fewer tokens begins with less.
        least = slots_of(asked.prompt_end, 1, asked.key.beams if chunked else 1)
        for size in self._cache.between(least, asked.key.cache):
            if size < asked.key.cache:
                key = dataclasses.replace(asked.key, cache=size)
                yield from self._first_calls_at(dataclasses.replace(asked, key=key), key)

    def shorter_lengths(self, batch: Batch, rows: Rows) -> list[int]:
        """Of prompts or sources that are shorter than `rows` and take a smaller bucket: the longest for each."""
        longest = max(map(len, rows))
        if batch.sources:
            return self._prompt_runner.source_buckets.below(longest)
        if not self._programs.chunked:
            return WHOLE_PROMPTS.below(longest)
        return self._cache.below(longest, slots_of(0, self._new(batch), batch.options.num_beams))

    @staticmethod
    def _new(batch: Batch) -> int:
        """How many new tokens a cache has room for from the start."""
        return min(batch.options.most_new_tokens, max(AHEAD, 2 * batch.guesses))

    def _first_calls_at(
        self, asked: _Prepared, key: StateKey, smaller: tuple[StateKey, ...] = ()
    ) -> Iterator[FirstCall]:
        """With the state of a key, which may have been a smaller one."""
        run: Callable = functools.partial(self._first_advance, asked, key)
        yield FirstCall(self._executables, asked.executable(key), run, (key, *smaller))
        if not self._programs.chunked:
            yield FirstCall(self._executables, asked.whole, functools.partial(self._run_whole, asked), (key,))
        # A prompt that is reused may find a cache that has grown.
        elif not self._programs.has_encoder if smaller else asked.prompt_end > 1:
            yield self._prompt_runner.first_prefill(key)

    def _first_advance(self, asked: _Prepared, key: StateKey, state: DeviceState, *smaller: DeviceState) -> None:
        for each in smaller:
            state.copy_from(each)  # JAX compiles for that, too
        self._put_prompts(asked, key, state)
        self._generation(asked, key, state).warm()

    def _prepared(self, batch: Batch) -> _Prepared:
        options, assistant, guesses = batch.options, batch.assistant, batch.guesses
        ids, starts = batch.ids()
        if self._programs.chunked:
            slots = slots_of(ids.shape[1], self._new(batch), options.num_beams)
        else:  # its cache cannot grow, and takes prompts whole
            ids, starts = pad_more(ids, starts, options.fill)
            slots = ids.shape[1] + options.most_new_tokens
        number, draft_weights = 0, []
        if assistant is not None:
            number = self._programs.number_of(assistant.model)
            assistant.prompt_runner.refresh()
            draft_weights = assistant.executables.read_weights()
        guided = batch.negative is not None
        key = StateKey(batch.size, self._cache.fit(slots), options.num_beams, batch.source, number, guided)
        weights = self._executables.read_weights()
        request, rooms = request_of(self._programs, batch, starts[: batch.size], ids.shape[1])
        if guided:
            request = request._replace(extras={**request.extras, **guidance_tensors(ids, starts)})
        request = keras.tree.map_structure(backend.to_device, request)

        def executable(key: StateKey) -> AdvanceKey:
            sizes = key.batch, key.cache, key.source, key.beams, *rooms, key.guided
            return SpeculateKey(*sizes, min(guesses, key.cache - 1), key.assistant) if guesses else AdvanceKey(*sizes)

        return _Prepared(batch, ids, starts, key, request, executable, weights, draft_weights)

    def _put_prompts(self, asked: _Prepared, key: StateKey, state: DeviceState) -> None:
        size, beams = asked.batch.size, key.beams
        prompts = asked.ids[:size]
        state.assign("tokens", np.pad(prompts, ((0, 0), (0, key.cache - asked.prompt_end))))
        if self._programs.chunked:
            state.assign("chosen", np.tile(prompts[:, -1:], (1, beams)))
            state.assign("parents", np.zeros((size, beams), np.int32))

    def _run_whole(self, asked: _Prepared, state: DeviceState) -> Any:
        ids = backend.to_device(asked.ids)
        return self._executables(asked.whole, state, asked.request, ids, weights=asked.weights)

    def _generation(self, asked: _Prepared, key: StateKey, state: DeviceState, progress: Any = None) -> Generation:
        kind: type[Generation] = Generation
        more: dict[str, Any] = {}
        if asked.batch.guesses:
            kind, more = Speculation, dict(times=self._times, draft_weights=asked.draft_weights)
        return kind(
            executables=self._executables,
            pool=self._pool,
            caches=self._cache if self._programs.chunked else None,
            key=key,
            state=state,
            request=asked.request,
            executable=asked.executable,
            prompt_end=asked.prompt_end,
            options=asked.batch.options,
            step=0 if self._programs.chunked else 1,
            pace=self._paces.setdefault(asked.executable(key), Pace()),
            progress=progress,
            weights=asked.weights,
            **more,
        )

    def _times(self, key: SpeculateKey) -> RunTimes:
        return self._run_times.setdefault(key, RunTimes(len(sizes_of(key.guesses)), reads=bool(key.assistant)))


def request_of(
    programs: Programs, batch: Batch, starts: np.ndarray, prompt_end: int
) -> tuple[Request, tuple[int, tuple[int, ...]]]:
    """What is asked for of a batch whose prompts begin at the slots `starts [B]` int32, and what rooms it has.

    The rooms are fields of an `AdvanceKey`: for end-of-sequence tokens, and for words.
    """
    options, sources = batch.options, batch.sources
    read = np.where(sources[1], sources[0], -1) if len(sources) == 2 else None
    may = allowed(batch.guides, batch.size, programs.words, batch.skip_broken)
    drawn_by = np.pad(batch.drawn_by, (0, batch.size - len(batch.drawn_by)))
    known = programs.processors, programs.vocab_size
    request = make_request(starts, prompt_end, eos_room(options), options, *known, drawn_by, may, read)
    rooms = [request.extras[name].shape for name in ("words", "sequences") if name in request.extras]
    return request, (len(request.eos), tuple(size for shape in rooms for size in shape))
