"""A batch of prompts, from ids to a run whose prompts are in the cache."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import slots_of
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.executables import AdvanceKey, AssistantKey, Executables, SpeculateKey, WholeKey
from keras_xla.engine.padding import pad_left, pad_more
from keras_xla.engine.programs import Programs
from keras_xla.engine.runs.generation import Generation, Pace, StateKey
from keras_xla.engine.runs.run import Guide, Run, allowed
from keras_xla.engine.runs.speculation import RunTimes, Speculation
from keras_xla.engine.search.guidance import guidance_tensors
from keras_xla.engine.search.request import Request, eos_room, make_request
from keras_xla.engine.states.prompt_cache import PromptCache, SavedPrompt
from keras_xla.engine.states.prompt_runner import PromptRunner
from keras_xla.engine.states.state_pool import StatePool

if TYPE_CHECKING:
    from keras_xla.engine.generator import Generator

# B batch, L length of the prompts

Rows = Sequence[np.ndarray]

AHEAD = 32  # new tokens that a cache has room for from the start


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


class Starter:
    """Starts the generations of one model.

    Args:
        programs: What is compiled for it.
        executables: Of these programs.
        pool: Of states.
        prompt_runner: Runs its prompts.
        cache: Buckets of the cache.
    """

    def __init__(
        self,
        programs: Programs,
        executables: Executables,
        pool: StatePool,
        prompt_runner: PromptRunner,
        cache: Buckets,
    ):
        self._programs, self._executables, self._pool = programs, executables, pool
        self._prompt_runner, self._cache = prompt_runner, cache
        self._paces: dict[AdvanceKey, Pace] = {}
        self._run_times: dict[SpeculateKey, RunTimes] = {}

    def __call__(self, batch: Batch) -> Run:
        """A generation with the prompts in its cache."""
        options, chunked, assistant = batch.options, self._programs.chunked, batch.assistant
        busy = np.array([len(prompt) > 0 for prompt in batch.prompts])
        ids, starts = batch.ids()
        if chunked:
            new = min(options.most_new_tokens, max(AHEAD, 2 * batch.guesses))
            slots = slots_of(ids.shape[1], new, options.num_beams)
        else:  # its cache cannot grow, and takes prompts whole
            ids, starts = pad_more(ids, starts, options.fill)
            slots = ids.shape[1] + options.most_new_tokens
        number = 0 if assistant is None else self._programs.number_of(assistant.model)
        guided = batch.negative is not None
        cache = self._cache.fit(slots)
        key = StateKey(batch.size, cache, options.num_beams, batch.source, number, guided)
        weights = self._executables.read_weights()
        reuse = None if guided else batch.reuse  # what stays of a prompt is one row of a cache
        key, state, known = self._prompt_runner.state(key, batch.sources, ids, starts, reuse, weights)
        prompts, begins, length = ids[: batch.size], starts[: batch.size], ids.shape[1]
        request, rooms = request_of(self._programs, batch, begins, length)
        if guided:
            request = request._replace(extras={**request.extras, **guidance_tensors(ids, starts)})
        request = keras.tree.map_structure(ops.convert_to_tensor, request)
        guesses = batch.guesses

        def executable(key: StateKey) -> AdvanceKey:
            sizes = key.batch, key.cache, key.source, key.beams, *rooms, key.guided
            return SpeculateKey(*sizes, min(guesses, key.cache - 1), key.assistant) if guesses else AdvanceKey(*sizes)

        state.assign("tokens", np.pad(prompts, ((0, 0), (0, key.cache - length))))
        progress = None
        if chunked:
            self._prompt_runner.prefill(key, state, ids, starts, known, weights)
            state.assign("chosen", np.tile(prompts[:, -1:], (1, options.num_beams)))
            state.assign("parents", np.zeros((batch.size, options.num_beams), np.int32))
        else:
            whole = WholeKey(**dataclasses.asdict(executable(key)), prompt=length)
            progress = self._executables(whole, state, request, ops.convert_to_tensor(ids), weights=weights) or None
        kind: type[Generation] = Generation
        more: dict[str, Any] = {}
        if guesses:
            its = [] if assistant is None else self.read_by(assistant, key, state, begins, length, weights)
            kind, more = Speculation, dict(times=self._times, draft_weights=its)
        generation = kind(
            executables=self._executables,
            pool=self._pool,
            caches=self._cache if chunked else None,
            key=key,
            state=state,
            request=request,
            executable=executable,
            prompt_end=length,
            options=options,
            step=0 if chunked else 1,
            pace=self._paces.setdefault(executable(key), Pace()),
            progress=progress,
            weights=weights,
            **more,
        )
        close = Generation.close if reuse is None else reuse.close
        return Run(generation, options, busy, batch.numbers, self._programs.words, close)

    def read_by(
        self, assistant: "Generator", key: StateKey, state, starts: np.ndarray, prompt_end: int, weights: list
    ) -> list:
        """The weights of an assistant, which has read the prompts then."""
        assistant.prompt_runner.refresh()
        its, name = assistant.executables.read_weights(), AssistantKey(key.batch, key.cache, key.assistant)
        inputs = map(ops.convert_to_tensor, (starts, np.int32(prompt_end)))
        self._executables(name, state, *inputs, weights=[*weights, *its])
        return its

    def _times(self, key: SpeculateKey) -> RunTimes:
        return self._run_times.setdefault(key, RunTimes())


def request_of(
    programs: Programs, batch: Batch, starts: np.ndarray, prompt_end: int
) -> tuple[Request, tuple[int, tuple[int, ...]]]:
    """What is asked for of a batch whose prompts begin at the slots `starts [B]` int32, and what rooms it has.

    The rooms are fields of an `AdvanceKey`: for end-of-sequence tokens, and for words.
    """
    options, sources = batch.options, batch.sources
    read = np.where(sources[1], sources[0], -1) if len(sources) == 2 else None
    may = allowed(batch.guides, batch.size, programs.words)
    drawn_by = np.pad(batch.drawn_by, (0, batch.size - len(batch.drawn_by)))
    known = programs.processors, programs.vocab_size
    request = make_request(starts, prompt_end, eos_room(options), options, *known, drawn_by, may, read)
    rooms = [request.extras[name].shape for name in ("words", "sequences") if name in request.extras]
    return request, (len(request.eos), tuple(size for shape in rooms for size in shape))
