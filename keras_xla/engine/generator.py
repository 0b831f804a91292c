"""From ragged rows of ids to completions: checks, buckets, the right executables, and back."""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Part, copies_of, most_rows, split
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.checks import check, check_speech, decoder_prompts
from keras_xla.engine.executables import AdvanceKey, AssistantKey, Executables, SpeculateKey, WholeKey
from keras_xla.engine.generation import Generation, Pace, StateKey
from keras_xla.engine.padding import pad_left, pad_more, padded
from keras_xla.engine.programs import Programs
from keras_xla.engine.prompt_cache import Kept, PromptCache, SavedPrompt
from keras_xla.engine.prompt_runner import PromptRunner
from keras_xla.engine.run import Guide, Run, Stop, allowed, nothing
from keras_xla.engine.search import processors as logits
from keras_xla.engine.search.own_processors import check_processor_options
from keras_xla.engine.search.request import eos_room, make_request
from keras_xla.engine.speculation import RunTimes, Speculation
from keras_xla.engine.state_pool import StatePool
from keras_xla.engine.watch import Watch
from keras_xla.models.interface import Decoder, EncoderDecoder

Rows = Sequence[np.ndarray]

AHEAD = 32  # new tokens that a cache has room for from the start
CACHE_BYTES = 2**31  # of all caches of a batch


class Generator:
    """Runs one model's generations, padded to buckets.

    Args:
        model: A `Decoder` or an `EncoderDecoder`.
        batch: Buckets of the batch size. What is more than the largest, or than 64 rows, runs one batch after the
            other, prompts of like length together.
        cache: Buckets of the cache: prompt and new tokens together, these once for each beam.
        source: Buckets of the length of what an encoder-decoder reads.
        on_recompile: `"log"` or `"raise"`, see `Executables`.
        name: For the compile log.
        processors: The logits processors there are, by name.
        processed_scores: Whether scores are of the processed distribution (before the temperature) rather than the
            model's own; a beam's always is.
        refresh: Called before each run: gives the model the weights that count now.
        cache_bytes: That the caches of a batch may hold; what needs more runs one batch after the other.
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
        cache_bytes: int = CACHE_BYTES,
    ):
        self.model, self.processors, self._words = model, dict(processors), -(-model.vocab_size // 32)
        self._programs = Programs(model, self.processors, processed_scores)
        self.has_encoder, self.chunked = self._programs.has_encoder, self._programs.chunked
        self.batch_buckets, self.cache_buckets, self._cache_bytes = batch, cache, cache_bytes
        programs = self._programs
        self.executables = Executables(name, programs.function, model.variables, on_recompile, programs.more_variables)
        self.pool = StatePool(self._programs.new_state)
        self.prompt_runner = PromptRunner(
            model, self._programs, self.executables, self.pool, batch, cache, source, refresh
        )
        self._paces: dict[AdvanceKey, Pace] = {}
        self._run_times: dict[AdvanceKey, RunTimes] = {}
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
        guides: Sequence[Guide | None] = (),
        reuse: PromptCache | SavedPrompt | None = None,
        first_row: int = 0,
        report: Callable[[int], None] = lambda rows: None,
        assistant: "Generator | None" = None,
    ) -> dict[str, np.ndarray]:
        """Complete each row.

        Args:
            rows: 1-D int32 arrays, no padding: prompts, or what an encoder-decoder reads.
            options: What to generate.
            prompts: What an encoder-decoder's completions begin with; `options.decoder_start_token_id` by default.
            hidden: Instead of `rows`, what `encode` returned; a row with an empty prompt then is idle.
            watch: Ends the call before; by default `options.max_time` does.
            stops: What ends each completion before.
            guides: What leads each completion.
            reuse: Where the prompts' beginnings may stand already, and where they are put.
            first_row: The number of the first row, on which what is drawn for it depends.
            report: Called with how many rows have just been finished.
            assistant: Of a smaller model, which guesses tokens; a decoder with the same vocabulary.

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
            return self._outputs(self.start(rows, options, prompts, hidden), watch)
        self.check(rows, options, prompts)  # all of them, before the first batch runs
        made, order = [], []
        for part in self.parts(rows, options):
            if watch.over:
                outputs = nothing(len(part.prompts), options)
            else:
                begun = None if prompts is None else part.of(prompts)
                led = part.of_rows(guides)
                more = dict(numbers=part.rows, first_row=first_row, room=part.room, assistant=assistant)
                run = self.start(part.of(rows), part.options, begun, guides=led, reuse=reuse, **more)
                outputs = self._outputs(run, watch, part.of_rows(stops), led, options)
            made.append(outputs)
            order.append(part.answers)
            report(len(part.prompts))
        back = np.argsort(np.concatenate(order))
        return {name: np.concatenate([outputs[name] for outputs in made])[back] for name in made[0]}

    def parts(self, rows: Rows, options: GenerationOptions) -> list[Part]:
        """Which prompts, or sources, run together."""
        lengths = [len(row) for row in rows]
        most = most_rows(self.batch_buckets, 0, self._cache_bytes)
        if self.keeps_prompts and len(rows) * copies_of(options) > 1:
            slots = _slots(max(lengths), options.most_new_tokens, options.num_beams)
            most = most_rows(self.batch_buckets, self._programs.slot_bytes * slots, self._cache_bytes)
        return split(lengths, options, most)

    def check(
        self, rows: Rows, options: GenerationOptions, prompts: Rows | None = None, hidden: Any = None
    ) -> tuple[Rows, Rows | None]:
        """Raise what `__call__` raises before anything compiles.

        Returns:
            What the decoder begins with, and what the encoder reads if there is one that has to.
        """
        prompts = self.decoder_prompts(rows, options, prompts)
        if options.prompt_lookup_num_tokens and not self.chunked:
            raise ValueError(
                f"Received prompt_lookup_num_tokens={options.prompt_lookup_num_tokens} for a model with a cache of its "
                "own, which runs one token at a time; expected it with a model of keras_xla's."
            )
        check_processor_options(self.processors, options, self.model.vocab_size)
        reads = rows if self.has_encoder and hidden is None else None
        check(self.model, [p for p in prompts if len(p) or hidden is None], options, reads)
        parts = self.parts(rows, options) if hidden is None else [Part(np.arange(len(prompts)), options, 1, 0)]
        for part in parts:  # rows of one batch end together, and go on until the last one is done
            longest, new = max(map(len, part.of(prompts))), part.options.most_new_tokens
            # A cache may have to grow to that; one that cannot takes prompts whole.
            slots = _slots(longest, new, options.num_beams) if self.chunked else padded(longest) + new
            self.cache_buckets.fit(slots)
        if reads is None and self.has_encoder:
            check_speech(options)
        self.prompt_runner.source_length(reads, hidden)
        if hidden is None:
            self.batch_buckets.fit(max(len(part.rows) for part in parts))
        return prompts, reads

    def start(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None = None,
        hidden: Any = None,
        *,
        guides: Sequence[Guide | None] = (),
        reuse: PromptCache | SavedPrompt | None = None,
        numbers: np.ndarray | None = None,
        first_row: int = 0,
        room: int = 0,
        assistant: "Generator | None" = None,
    ) -> Run:
        """Run the prompts of one batch; arguments and errors as for `__call__`.

        `numbers` are those of the rows in the call, from 0 on by default. What is drawn for a row depends on its number
        and `first_row` together, but not where each prompt has a seed: its answers are those that it would have alone.
        The batch has `room` for so many rows at least.
        """
        prompts, reads = self.check(rows, options, prompts, hidden)
        copies, each = copies_of(options), np.arange(len(prompts))
        options = options.of_rows(np.repeat(each, copies))
        numbers = np.arange(len(prompts) * copies) if numbers is None else numbers
        drawn_by = np.tile(np.arange(copies), len(prompts)) if isinstance(options.seed, tuple) else first_row + numbers
        prompts = [row for row in prompts for _ in range(copies)]
        batch = self.batch_buckets.fit(max(len(prompts), room))
        self.prompt_runner.refresh()
        sources = self.prompt_runner.sources(reads, hidden, copies, batch)
        drawn_by = np.pad(drawn_by, (0, batch - len(drawn_by)))
        key = StateKey(batch, 0, options.num_beams, self.prompt_runner.source_length(reads, hidden))
        may = allowed(guides, batch, self._words)
        return self._begun(prompts, options, key, sources, reuse, drawn_by, may, numbers, assistant)

    def warmup(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None = None,
        hidden: Any = None,
        assistant: "Generator | None" = None,
    ) -> None:
        """Compile what a call with arguments of this size needs, for `max_new_tokens`."""
        if hidden is None:
            for part in self.parts(rows, options):
                begun = None if prompts is None else part.of(prompts)
                self._warm(part.of(rows), part.options, begun, None, assistant)
        else:
            self._warm(rows, options, prompts, hidden)

    def _warm(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None,
        hidden: Any,
        assistant: "Generator | None" = None,
    ) -> None:
        def prefill(key: StateKey, state: backend.DeviceState) -> None:
            if self.has_encoder:
                return
            self.prompt_runner.prefill(key, state, ids, starts)
            if assistant is not None:
                self._read_by(assistant, key, state, starts, ids.shape[1], self.executables.read_weights())

        with self.executables.warming():
            run = self.start(rows, options, prompts, hidden, assistant=assistant)
            ids, starts = np.zeros((run.generation.batch, 2), np.int32), np.zeros((run.generation.batch,), np.int32)
            run.generation.warm(prefill)
            run.close()

    def number_rows(self, count: int) -> int:
        """A number for the first of `count` rows, different from those of all rows numbered before."""
        with self._numbering:
            first, self._numbered = self._numbered, (self._numbered + count) % 2**31
        return first

    @property
    def keeps_prompts(self) -> bool:
        """Whether prompts can stay in a cache: not where a source is another each time, or the cache is not ours."""
        return self.chunked and not self.has_encoder

    def prompt_cache(self, saved: SavedPrompt | None = None) -> PromptCache | None:
        """An empty one, for which `saved` serves at first; None where prompts cannot stay."""
        if saved is not None:
            self.use(saved)
        return PromptCache(self.pool, self.model.variables, saved) if self.keeps_prompts else None

    def use(self, reuse: PromptCache | SavedPrompt) -> None:
        """To be called before `reuse` is an argument: it may have been made before the layer was quantized.

        Raises:
            ValueError: for a prompt that another generator saved.
        """
        reuse.serve(self.pool, self.model.variables)

    def save_prompt(self, rows: Rows) -> SavedPrompt:
        """Run prompts, and keep them.

        Raises:
            ValueError: as `__call__` does, for more rows than one batch, and where prompts cannot stay.
        """
        if not self.keeps_prompts:
            kind = "an encoder-decoder" if self.has_encoder else "a model with a cache of its own"
            raise ValueError(f"Received a prompt to save for {kind}; expected a decoder-only model of keras_xla.")
        options = GenerationOptions(max_new_tokens=1)
        self.check(rows, options)
        if len(parts := self.parts(rows, options)) > 1:
            raise ValueError(
                f"Received {len(rows)} prompts to save; expected at most {len(parts[0].prompts)}, one batch."
            )
        kept = Kept.of(self.start(rows, options).generation)
        return SavedPrompt(kept, self.pool, self.model.variables)

    def encode(self, features: np.ndarray) -> Any:
        """An encoder's hidden states `(batch bucket, length, hidden)` of speech `features (rows, mel, frames)`."""
        return self.prompt_runner.encode(features)

    def score(self, prompts: Rows, hidden: Any) -> np.ndarray:
        """Logits `(rows, vocab_size)` of the token after each decoder prompt; nothing is generated."""
        options = GenerationOptions(max_new_tokens=1)
        check(self.model, [prompt for prompt in prompts if len(prompt)], options)
        return self.prompt_runner.logits(prompts, hidden)

    def decoder_prompts(self, rows: Rows, options: GenerationOptions, prompts: Rows | None = None) -> Rows:
        """What the decoder begins with; arguments and errors as for `__call__`."""
        return decoder_prompts(rows, options, prompts) if self.has_encoder else rows

    @staticmethod
    def _outputs(
        run: Run,
        watch: Watch,
        stops: Sequence[Stop] = (),
        guides: Sequence[Guide | None] = (),
        call: GenerationOptions | None = None,
    ) -> dict[str, np.ndarray]:
        for _ in run.advance(watch, stops, guides):
            pass
        outputs = run.outputs(None if call is None else call.most_new_tokens)
        run.close()
        return outputs

    def _begun(self, prompts, options, key: StateKey, sources: list, reuse, drawn_by, may, numbers, assistant) -> Run:
        """A generation with the prompts in its cache."""
        chunked, batch = self.chunked, key.batch
        guesses = options.prompt_lookup_num_tokens if assistant is None else options.num_assistant_tokens
        busy = np.array([len(prompt) > 0 for prompt in prompts])
        ids, starts = pad_left(prompts, batch, options.fill)
        if chunked:
            slots = ids.shape[1] + options.num_beams * min(options.most_new_tokens, max(AHEAD, 2 * guesses))
        else:  # its cache cannot grow, and takes prompts whole
            ids, starts = pad_more(ids, starts, options.fill)
            slots = ids.shape[1] + options.most_new_tokens
        number = 0 if assistant is None else self._programs.number_of(assistant.model)
        key = dataclasses.replace(key, cache=self.cache_buckets.fit(slots), assistant=number)
        length = ids.shape[1]
        weights = self.executables.read_weights()
        read = np.where(sources[1], sources[0], -1) if len(sources) == 2 else None
        key, state, known = self.prompt_runner.state(key, sources, ids, starts, reuse, weights)
        request = make_request(
            starts, length, eos_room(options), options, self.processors, self.model.vocab_size, drawn_by, may, read
        )
        rooms = [request.extras[name].shape for name in ("words", "sequences") if name in request.extras]
        words = tuple(size for shape in rooms for size in shape)
        request = keras.tree.map_structure(ops.convert_to_tensor, request)

        def executable(key: StateKey) -> AdvanceKey:
            sizes = key.batch, key.cache, key.source, key.beams, request.eos.shape[0], words
            return SpeculateKey(*sizes, min(guesses, key.cache - 1), key.assistant) if guesses else AdvanceKey(*sizes)

        state.assign("tokens", np.pad(ids, ((0, 0), (0, key.cache - length))))
        progress = None
        if chunked:
            self.prompt_runner.prefill(key, state, ids, starts, known, weights)
            state.assign("chosen", np.tile(ids[:, -1:], (1, options.num_beams)))
            state.assign("parents", np.zeros((batch, options.num_beams), np.int32))
        else:
            whole = WholeKey(**dataclasses.asdict(executable(key)), prompt=length)
            progress = self.executables(whole, state, request, ops.convert_to_tensor(ids), weights=weights) or None
        kind, more = Generation, {}
        if guesses:
            its = [] if assistant is None else self._read_by(assistant, key, state, starts, length, weights)
            kind, more = Speculation, dict(times=self._times, draft_weights=its)
        generation = kind(
            executables=self.executables,
            pool=self.pool,
            caches=self.cache_buckets if chunked else None,
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
        return Run(generation, options, busy, numbers, self._words, close)

    def _times(self, key: SpeculateKey) -> RunTimes:
        return self._run_times.setdefault(key, RunTimes())

    def _read_by(
        self, assistant: "Generator", key: StateKey, state, starts: np.ndarray, prompt_end: int, weights: list
    ) -> list:
        """The weights of an assistant, which has read the prompts then."""
        assistant.prompt_runner.refresh()
        its, name = assistant.executables.read_weights(), AssistantKey(key.batch, key.cache, key.assistant)
        inputs = map(ops.convert_to_tensor, (starts, np.int32(prompt_end)))
        self.executables(name, state, *inputs, weights=[*weights, *its])
        return its


def _slots(prompt: int, new: int, beams: int) -> int:
    """Of a cache that holds a prompt and all new tokens; beams have a slot each for every token but the last."""
    return prompt + max(new, beams * new - 1)
