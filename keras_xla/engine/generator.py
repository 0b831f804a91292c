"""From ragged rows of ids to completions: checks, buckets, the right executables, and back."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla.backend import DeviceState
from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.checks import check
from keras_xla.engine.executables import AdvanceKey, EncodeKey, Executables, PrefillKey, RememberKey, ScoreKey, WholeKey
from keras_xla.engine.generation import Generation, Pace, StateKey
from keras_xla.engine.programs import Programs
from keras_xla.engine.prompt_cache import PromptCache
from keras_xla.engine.run import Run, Stop, nothing
from keras_xla.engine.search import processors as logits
from keras_xla.engine.search.request import eos_room, make_request, pad_left, pad_source
from keras_xla.engine.state_pool import StatePool
from keras_xla.engine.watch import Watch
from keras_xla.models.interface import Decoder, EncoderDecoder

Rows = Sequence[np.ndarray]

AHEAD = 32  # new tokens that a cache has room for from the start
CHUNK_PART, LEAST_CHUNK, MOST_CHUNK = 8, 16, 512  # of a cache, and in tokens
MOST_ROWS = 64  # that run at once where no batch buckets are given


class Generator:
    """Runs one model's generations, padded to buckets.

    Args:
        model: A `Decoder` or an `EncoderDecoder`.
        batch: Buckets of the batch size. What is more than the largest, or than 64 rows, runs one batch after the
            other.
        cache: Buckets of the cache: prompt and new tokens together, these once for each beam.
        source: Buckets of the length of what an encoder-decoder reads.
        on_recompile: `"log"` or `"raise"`, see `Executables`.
        name: For the compile log.
        processors: The logits processors there are, by name.
        processed_scores: Whether scores are of the processed distribution (before the temperature) rather than the
            model's own; a beam's always is.
        refresh: Called before each run: gives the model the weights that count now.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        batch: Buckets,
        cache: Buckets,
        source: Buckets | None = None,
        on_recompile: str = "log",
        name: str = "generate",
        processors: Mapping[str, logits.Processor] = logits.PROCESSORS,
        processed_scores: bool = False,
        refresh: Callable[[], None] = lambda: None,
    ):
        self.model, self.processors = model, dict(processors)
        self._programs = Programs(model, self.processors, processed_scores)
        self.has_encoder = self._programs.has_encoder
        self._batch, self._cache, self._source, self._refresh = batch, cache, source, refresh
        self.executables = Executables(name, self._programs.function, model.variables, on_recompile)
        self._pool = StatePool(self._programs.new_state)
        self._paces: dict[AdvanceKey, Pace] = {}
        self._numbering, self._numbered = threading.Lock(), 0

    def __call__(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None = None,
        hidden: Any = None,
        *,
        watch: Watch | None = None,
        stops: Sequence[Stop] = (),
        reuse: PromptCache | None = None,
        first_row: int = 0,
    ) -> dict[str, np.ndarray]:
        """Complete each row.

        Args:
            rows: 1-D int32 arrays, no padding: prompts, or what an encoder-decoder reads.
            options: What to generate.
            prompts: What an encoder-decoder's completions begin with; `options.decoder_start_token_id` by default.
            hidden: Instead of `rows`, what `encode` returned; a row with an empty prompt then is idle.
            watch: Ends the call before; by default `options.max_time` does.
            stops: What ends each completion before.
            reuse: Where the prompts' beginnings may stand already, and where they are put.
            first_row: The number of the first row, on which what is drawn for it depends.

        Returns:
            `sequences (rows * num_return_sequences, max_new_tokens)` int32, new tokens only,
            right-padded; `lengths` int32, tokens generated, an end-of-sequence token included; `scores`
            float32: the sum of their log-probabilities under the model, or a beam's score.

        Raises:
            ValueError: for what `checks.check` refuses; before anything compiles. Also if the model's
                logits are NaN.
        """
        watch = Watch(options.max_time) if watch is None else watch
        if hidden is not None:  # one batch already
            return self._outputs(self.start(rows, options, prompts, hidden), watch, ())
        self.check(rows, options, prompts)  # all of them, before the first batch runs
        copies, parts = copies_of(options), []
        for part in self.batches(len(rows), options):
            if watch.over:
                parts.append(nothing(len(rows[part]), options))
                continue
            begun = None if prompts is None else prompts[part]
            number = first_row + part.start * copies
            run = self.start(rows[part], options, begun, reuse=reuse, first_row=number)
            parts.append(self._outputs(run, watch, stops[part.start * copies : part.stop * copies]))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def batches(self, rows: int, options: GenerationOptions) -> Iterator[slice]:
        """Which of so many rows run together."""
        most = max(1, (self._batch.sizes[-1] if self._batch.sizes else MOST_ROWS) // copies_of(options))
        return (slice(first, min(first + most, rows)) for first in range(0, rows, most))

    def check(
        self, rows: Rows, options: GenerationOptions, prompts: Rows | None = None, hidden: Any = None
    ) -> tuple[Rows, Rows | None]:
        """Raise what `__call__` raises before anything compiles.

        Returns:
            What the decoder begins with, and what the encoder reads if there is one that has to.
        """
        prompts = self.decoder_prompts(rows, options, prompts)
        reads = rows if self.has_encoder and hidden is None else None
        check(self.model, [p for p in prompts if len(p) or hidden is None], options, reads)
        longest, new, beams = max(map(len, prompts)), options.max_new_tokens, options.num_beams
        if self._programs.chunked:
            self._cache.fit(longest + max(new, beams * new - 1))  # where it may have to grow to
        else:
            self._cache.fit(padded(longest) + new)
        if reads is not None:
            self._source_length(reads, None)
        if hidden is None:
            self._batch.fit(
                max(part.stop - part.start for part in self.batches(len(prompts), options)) * copies_of(options)
            )
        return prompts, reads

    def start(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None = None,
        hidden: Any = None,
        *,
        reuse: PromptCache | None = None,
        first_row: int = 0,
    ) -> Run:
        """Run the prompts of one batch; arguments and errors as for `__call__`."""
        prompts, reads = self.check(rows, options, prompts, hidden)
        copies = copies_of(options)
        prompts = [row for row in prompts for _ in range(copies)]
        batch = self._batch.fit(len(prompts))
        self._refresh()
        if reads is not None:
            reads = [row for row in reads for _ in range(copies)]
        source = 0 if not self.has_encoder else self._source_length(reads, hidden)
        sources = self._sources(batch, source, reads, hidden, copies)
        busy = np.array([len(prompt) > 0 for prompt in prompts])
        return self._begun(prompts, options, batch, source, sources, busy, reuse, first_row)

    def warmup(self, rows: Rows, options: GenerationOptions, prompts: Rows | None = None, hidden: Any = None) -> None:
        """Compile what a call with arguments of this size needs, for `max_new_tokens`."""
        if hidden is None:
            for part in self.batches(len(rows), options):
                self._warm(rows[part], options, None if prompts is None else prompts[part], None)
        else:
            self._warm(rows, options, prompts, hidden)

    def _warm(self, rows: Rows, options: GenerationOptions, prompts: Rows | None, hidden: Any) -> None:
        with self.executables.warming():
            run = self.start(rows, options, prompts, hidden)
            ids, starts = np.zeros((run.generation.batch, 2), np.int32), np.zeros((run.generation.batch,), np.int32)
            run.generation.warm(lambda key, state: self.has_encoder or self._prefill(key, state, ids, starts))
            run.close()

    def number_rows(self, count: int) -> int:
        """A number for the first of `count` rows, different from those of all rows numbered before."""
        with self._numbering:
            first, self._numbered = self._numbered, (self._numbered + count) % 2**31
        return first

    def prompt_cache(self) -> PromptCache | None:
        """An empty one; None where prompts cannot stay: a source is another each time, or the cache is not ours."""
        return None if self.has_encoder or not self._programs.chunked else PromptCache(self._pool, self.model.variables)

    def encode(self, features: np.ndarray) -> Any:
        """An encoder's hidden states `(batch bucket, length, hidden)` of speech `features (rows, mel, frames)`."""
        batch = self._batch.fit(len(features))
        filled = np.zeros((batch, *features.shape[1:]), np.float32)
        filled[: len(features)] = features
        self._refresh()
        return self.executables(EncodeKey(batch, features.shape[1:]), ops.convert_to_tensor(filled))

    def score(self, prompts: Rows, hidden: Any) -> np.ndarray:
        """Logits `(rows, vocab_size)` of the token after each decoder prompt; nothing is generated."""
        options = GenerationOptions(max_new_tokens=1)
        check(self.model, [prompt for prompt in prompts if len(prompt)], options)
        self._refresh()
        ids, starts = pad_left(prompts, hidden.shape[0], 0)
        key = StateKey(hidden.shape[0], self._cache.fit(ids.shape[1] + 1), 1, hidden.shape[1])
        weights = self.executables.read_weights()
        key, state, _ = self._state(key, [hidden], ids, starts, None, weights)
        self._prefill(key, state, ids, starts, weights=weights)
        inputs = map(ops.convert_to_tensor, (ids[:, -1], np.int32(ids.shape[1] - 1), starts))
        scores = self.executables(ScoreKey(key.batch, key.cache, key.source), state, *inputs, weights=weights)
        self._pool.give(key, state)
        return ops.convert_to_numpy(scores)[: len(prompts)]

    def decoder_prompts(self, rows: Rows, options: GenerationOptions, prompts: Rows | None = None) -> Rows:
        """What the decoder begins with; arguments and errors as for `__call__`."""
        if not self.has_encoder:
            return rows
        if prompts is not None:
            if len(rows) and len(prompts) != len(rows):
                raise ValueError(
                    f"Received {len(prompts)} rows of decoder_input_ids with {len(rows)} of input_ids; expected one "
                    "for each."
                )
            return prompts
        start = options.decoder_start_token_id
        if start is None:
            raise ValueError(
                "Received no decoder_start_token_id, which an encoder-decoder's completions begin with. Pass it; the "
                "model's config.json or generation_config.json names it."
            )
        return [np.array([start], np.int32)] * len(rows)

    def _source_length(self, reads: Rows | None, hidden: Any) -> int:
        if hidden is not None:
            return hidden.shape[1]
        length, limit = self._source.fit(max(map(len, reads))), self.model.max_source
        return length if limit is None else min(length, limit)

    @staticmethod
    def _outputs(run: Run, watch: Watch, stops: Sequence[Stop]) -> dict[str, np.ndarray]:
        for _ in run.advance(watch, stops):
            pass
        outputs = run.outputs()
        run.close()
        return outputs

    def _begun(self, prompts, options, batch, source, sources, busy, reuse, first_row) -> Run:
        """A generation with the prompts in its cache."""
        chunked = self._programs.chunked
        ids, starts = pad_left(prompts, batch, options.fill)
        if chunked:
            slots = ids.shape[1] + options.num_beams * min(options.max_new_tokens, AHEAD)
        else:  # its cache cannot grow, and takes prompts whole
            ids, starts = pad_more(ids, starts, options.fill)
            slots = ids.shape[1] + options.max_new_tokens
        key, length = StateKey(batch, self._cache.fit(slots), options.num_beams, source), ids.shape[1]
        weights = self.executables.read_weights()
        key, state, known = self._state(key, sources, ids, starts, reuse, weights)
        request = make_request(
            starts, length, eos_room(options), options, self.processors, self.model.vocab_size, first_row
        )
        words = tuple(request.extras["words"].shape) if "words" in request.extras else ()
        request = keras.tree.map_structure(ops.convert_to_tensor, request)

        def executable(key: StateKey) -> AdvanceKey:
            return AdvanceKey(key.batch, key.cache, key.source, key.beams, request.eos.shape[0], words)

        state.assign("tokens", np.pad(ids, ((0, 0), (0, key.cache - length))))
        progress = None
        if chunked:
            self._prefill(key, state, ids, starts, known, weights)
            state.assign("chosen", np.tile(ids[:, -1:], (1, options.num_beams)))
            state.assign("parents", np.zeros((batch, options.num_beams), np.int32))
        else:
            whole = WholeKey(**dataclasses.asdict(executable(key)), prompt=length)
            progress = self.executables(whole, state, request, ops.convert_to_tensor(ids), weights=weights) or None
        generation = Generation(
            self.executables,
            self._pool,
            self._cache if chunked else None,
            key,
            state,
            request,
            executable,
            length,
            options,
            0 if chunked else 1,
            self._paces.setdefault(executable(key), Pace()),
            progress,
            weights,
        )
        if reuse is None:
            return Run(generation, options, busy)
        return Run(generation, options, busy, lambda generation: reuse.put(generation, starts, weights))

    def _state(self, key: StateKey, sources: list, ids, starts, reuse, weights) -> tuple[StateKey, DeviceState, int]:
        """A state with what the decoder needs of its source in it; how many slots hold the prompts already."""
        if reuse is not None:
            reuse.serve(self._pool, self.model.variables)  # the layer may have been quantized since it was made
        kept = None if reuse is None or key.beams > 1 else reuse.take(key.batch, ids, starts)
        if kept is not None:
            return self._moved(key, *kept)
        if sources:
            self._programs.remember_specs(key, sources)
        state = self._pool.take(key)
        if sources:
            self.executables(RememberKey(key.batch, key.source, len(sources) == 1), state, *sources, weights=weights)
        return key, state, 0

    def _moved(self, key: StateKey, kept: StateKey, state: DeviceState, known: int):
        """A kept state, with at least the room that `key` has."""
        if kept.cache >= key.cache:
            return kept, state, known
        larger = self._pool.take(key)
        larger.copy_from(state)
        self._pool.give(kept, state)
        return key, larger, known

    def _prefill(
        self, key: StateKey, state, ids: np.ndarray, starts: np.ndarray, known: int = 0, weights: list | None = None
    ) -> None:
        """Run prompts `ids [B, L]` from the slot `known` on, but for their last tokens, which `advance` runs."""
        name = PrefillKey(key.batch, key.cache, chunk_size(key.cache), key.source)
        starts = ops.convert_to_tensor(starts)
        for chunk, slot in chunks(ids[:, :-1], name.chunk, key.cache, known):
            inputs = ops.convert_to_tensor(chunk), starts, ops.convert_to_tensor(slot)
            self.executables(name, state, *inputs, weights=weights)

    def _sources(self, batch: int, source: int, reads, hidden, copies) -> list:
        """What a `RememberKey` takes: ids and their mask, or hidden states."""
        if not source:
            return []
        if hidden is None:
            return [ops.convert_to_tensor(x) for x in pad_source(reads, batch, source)]
        return [_repeat(hidden, copies, batch)]


def copies_of(options: GenerationOptions) -> int:
    """How many rows a prompt takes: a beam search finds its answers in one."""
    return options.num_return_sequences if options.num_beams == 1 else 1


def chunk_size(cache: int) -> int:
    """Tokens of a prompt that run at once over a cache of so many slots."""
    return min(cache, MOST_CHUNK, max(LEAST_CHUNK, cache // CHUNK_PART))


def chunks(ids: np.ndarray, size: int, cache: int, first: int = 0) -> Iterator[tuple[np.ndarray, np.int32]]:
    """Prompts `ids [B, L]` from the slot `first` on, in parts `[B, size]` int32, each with the slot it begins at."""
    for begin in range(first, ids.shape[1], size):
        slot = min(begin, cache - size)  # all of it has to fit: some tokens then run twice
        chunk = ids[:, slot : slot + size]
        yield np.pad(chunk, ((0, 0), (0, size - chunk.shape[1]))), np.int32(slot)


def padded(length: int) -> int:
    """What prompts that run whole are padded to: the next power of two, at least 32."""
    return 1 << max(length - 1, 31).bit_length()


def pad_more(ids: np.ndarray, starts: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """`ids [B, L]`, padded on the left to the next power of two, at least 32; and where rows begin then."""
    missing = padded(ids.shape[1]) - ids.shape[1]
    return np.pad(ids, ((0, 0), (missing, 0)), constant_values=pad), starts + missing


def _repeat(hidden, copies: int, batch: int):
    """Each row of `hidden` `copies` times, `batch` rows in all."""
    if copies == 1 and hidden.shape[0] == batch:
        return hidden
    rows = np.minimum(np.arange(batch) // copies, hidden.shape[0] - 1)
    return ops.take(hidden, rows.astype("int32"), axis=0)
