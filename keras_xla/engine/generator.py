"""From ragged rows of ids to completions: checks, buckets, the right executables, and back."""

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Limits, Part, copies_of, drawn_by, most_slots, split
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.checks import check, check_negative, check_speech, decoder_prompts, negative_prompts
from keras_xla.engine.executables import Executables
from keras_xla.engine.padding import Rows
from keras_xla.engine.programs import Programs
from keras_xla.engine.runs.deadline import Deadline, DeadlineReached
from keras_xla.engine.runs.refill import Refill
from keras_xla.engine.runs.run import Guide, Run, Stop, nothing, refuse_broken
from keras_xla.engine.runs.starter import Batch, Starter
from keras_xla.engine.search import processors as logits
from keras_xla.engine.search.own_processors import check_processor_options
from keras_xla.engine.states.prompt_cache import CachedPrompt, PromptCache, SavedPrompt
from keras_xla.engine.states.prompt_runner import PromptRunner
from keras_xla.engine.states.state_pool import StatePool
from keras_xla.engine.warmup import FirstCall, OnFirstCall, silent, warm_up
from keras_xla.models.interface import Decoder, EncoderDecoder

CACHE_BYTES = 2**31  # of all caches of a batch
OUR_DECODER = "a decoder-only model of keras_xla's"


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
        cache_bytes: That the caches of a batch may hold; what needs more runs one batch after the other. And that the
            states may hold which chats and `reuse_prompt=True` go on with.
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
        self.model, self.processors = model, dict(processors)
        self._programs = programs = Programs(model, self.processors, processed_scores)
        self.has_encoder, self.chunked = programs.has_encoder, programs.chunked
        sized = (lambda: programs.slot_bytes) if self.keeps_prompts else None
        self.limits = Limits(batch, cache, cache_bytes, sized)
        more = programs.more_variables, programs.computes, programs.tracing
        self.executables = Executables(name, programs.function, model.variables, on_recompile, *more)
        self.pool = StatePool(programs.new_state, kept_bytes=cache_bytes)
        self.prompt_runner = PromptRunner(model, programs, self.executables, self.pool, batch, cache, source, refresh)
        made = programs, self.executables, self.pool, self.prompt_runner
        self._starter, self._refill = Starter(*made, cache, cache_bytes), Refill(*made, self.limits)
        self._numbering, self._numbered = threading.Lock(), 0

    def __call__(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None = None,
        hidden: Any = None,
        *,
        deadline: Deadline | None = None,
        stops: Sequence[Stop] = (),
        guides: Sequence[Guide | None] = (),
        reuse: PromptCache | SavedPrompt | None = None,
        numbers: np.ndarray | None = None,
        first_row: int | np.ndarray = 0,
        report: Callable[[int], None] = lambda rows: None,
        assistant: "Generator | None" = None,
        negative: Rows | None = None,
        skip_broken: bool = False,
        room_for: int = 0,
    ) -> dict[str, np.ndarray]:
        """Complete each row.

        Args:
            rows: 1-D int32 arrays, no padding: prompts, or what an encoder-decoder reads.
            options: What to generate.
            prompts: What an encoder-decoder's completions begin with; `options.decoder_start_token_id` by default.
            hidden: Instead of `rows`, what `encode` returned; a row with an empty prompt then is idle.
            deadline: Ends the call before; by default `options.max_time` does.
            stops: What ends each completion before.
            guides: What leads each completion.
            reuse: Where the prompts' beginnings may stand already, and where they are put.
            numbers: With `hidden`, those of the rows, by which errors call them; from 0 on by default.
            first_row: Added to the rows' numbers: on the sum, what is drawn depends.
            report: Called with how many rows have just been finished.
            assistant: Of a smaller model, which guesses tokens; a decoder with the same vocabulary.
            negative: For guidance, what completions are led away from; by default each row's last token.
            skip_broken: Whether rows whose logits are NaN have no tokens, and NaN as their score.
            room_for: Prompts of the call with those that were left out; see `split`.

        Returns:
            `sequences (rows * num_return_sequences, max_new_tokens)` int32, new tokens only,
            right-padded; `lengths` int32, tokens generated, an end-of-sequence token included; `scores`
            float32: the sum of their log-probabilities under the model, or a beam's score.

        Raises:
            ValueError: for what `checks.check` refuses; before anything compiles. Also if the model's
                logits are NaN, unless `skip_broken`.
        """
        deadline = Deadline(options.max_time) if deadline is None else deadline
        if hidden is not None:  # one batch already
            goes_on = not deadline.of_time
            run = self.start(rows, options, prompts, hidden, numbers=numbers, first_row=first_row, goes_on=goes_on)
            return self._outputs(run, deadline)
        self.check(rows, options, prompts, negative=negative)  # all of them, before the first batch runs
        negative, made, order = negative_prompts(rows, options, negative), [], []
        alone = self.keeps_prompts and not any(guides) and reuse is None and assistant is None
        known = [copy.copy(stop) for stop in stops]  # what runs again is looked at from its beginning again
        if alone and (asked := self._refill.worth_it(rows, options, first_row, known)) is not None:
            self.prompt_runner.refresh()
            outputs = self._refill.outputs(asked, options, deadline, report, skip_broken)
            again = np.unique(np.flatnonzero(np.isnan(outputs["scores"])) // options.num_return_sequences)
            broken = [rows[i] for i in again]
            for part in self.parts(broken, options.of_rows(again), room_for=len(rows)) if broken else []:
                part = dataclasses.replace(part, prompts=again[part.prompts])
                more: dict[str, Any] = dict(numbers=part.rows, first_row=first_row, room=part.room, deadline=deadline)
                try:
                    run = self.start(part.of(rows), part.options, **more)
                except DeadlineReached:  # their scores stay NaN
                    break
                mended = self._outputs(run, deadline, part.of_rows(stops), (), options, skip_broken)
                for name, values in outputs.items():
                    values[part.answers] = mended[name]
            return outputs
        for part in self.parts(rows, options, negative, room_for):
            begun, unwanted = (None if x is None else part.of(x) for x in (prompts, negative))
            led = part.of_rows(guides)
            more = dict(numbers=part.rows, first_row=first_row, room=part.room, assistant=assistant, goes_on=True)
            more |= dict(guides=led, reuse=reuse, negative=unwanted, deadline=deadline, skip_broken=skip_broken)
            try:
                run = self.start(part.of(rows), part.options, begun, **more)
            except DeadlineReached:
                outputs = nothing(len(part.prompts), options)
            else:
                outputs = self._outputs(run, deadline, part.of_rows(stops), led, options, skip_broken)
            made.append(outputs)
            order.append(part.answers)
            report(len(part.prompts))
        back = np.argsort(np.concatenate(order))
        return {name: np.concatenate([outputs[name] for outputs in made])[back] for name in made[0]}

    def parts(
        self, rows: Rows, options: GenerationOptions, negative: Rows | None = None, room_for: int = 0
    ) -> list[Part]:
        """Which prompts, or sources, run together; `room_for` as for `split`."""
        lengths = [len(row) for row in rows]
        if negative is not None:
            lengths = [max(pair) for pair in zip(lengths, map(len, negative), strict=True)]
        alone = max(len(rows), room_for) * copies_of(options) == 1  # whatever its cache takes
        return split(lengths, options, 1 if alone else self.limits.rows(max(lengths), options), self._fit, room_for)

    def _fit(self, longest: int, options: GenerationOptions) -> bool:
        """For `split`; of encoder-decoders only the lengths of sources are known, so theirs are not looked at."""
        return self.has_encoder or self.limits.cache.holds(most_slots(longest, options, self.chunked))

    def check(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None = None,
        hidden: Any = None,
        negative: Rows | None = None,
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
        if options.guided and not self.keeps_prompts:
            raise ValueError(f"Received guidance_scale for {self.kind}; expected it with {OUR_DECODER}.")
        check_processor_options(self.processors, options, self.model.vocab_size)
        reads = rows if self.has_encoder and hidden is None else None
        check(self.model, [p for p in prompts if len(p) or hidden is None], options, reads)
        negative = negative_prompts(rows, options, negative)
        check_negative(self.model, negative or [], options)
        whole = [Part(np.arange(len(prompts)), options, 1, 0)]
        parts = self.parts(rows, options, negative) if hidden is None else whole
        for part in parts:  # rows of one batch end together, and go on until the last one is done
            longest = max(map(len, [*part.of(prompts), *(part.of(negative) if negative else [])]))
            self.limits.cache.fit(most_slots(longest, part.options, self.chunked))
        if reads is None and self.has_encoder:
            check_speech(options)
        self.prompt_runner.source_length(reads, hidden)
        if hidden is None:
            self.limits.batch.fit(max(len(part.rows) for part in parts))
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
        first_row: int | np.ndarray = 0,
        room: int = 0,
        assistant: "Generator | None" = None,
        negative: Rows | None = None,
        deadline: Deadline | None = None,
        skip_broken: bool = False,
        goes_on: bool = False,
    ) -> Run:
        """Run the prompts of one batch; arguments and errors as for `__call__`. `goes_on`: tokens are made at once.

        `numbers` are those of the rows in the call, from 0 on by default. What is drawn for a row depends on its number
        and `first_row` together, but not where each prompt has a seed: its answers are those that it would have alone.
        The batch has `room` for so many rows at least.

        Raises:
            DeadlineReached: if `deadline` is over before the prompts have run.
        """
        more: dict[str, Any] = dict(numbers=numbers, first_row=first_row, room=room, negative=negative)
        more |= dict(guides=guides, reuse=reuse, assistant=assistant, skip_broken=skip_broken)
        return self._starter(self._batch(rows, options, prompts, hidden, **more), deadline, goes_on)

    def _batch(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None,
        hidden: Any,
        *,
        numbers: np.ndarray | None = None,
        first_row: int | np.ndarray = 0,
        room: int = 0,
        negative: Rows | None = None,
        **more: Any,
    ) -> Batch:
        """See `start`; `more` are fields of a `Batch`."""
        prompts, reads = self.check(rows, options, prompts, hidden, negative)
        negative = negative_prompts(rows, options, negative)
        copies, each = copies_of(options), np.arange(len(prompts))
        options = options.of_rows(np.repeat(each, copies))
        numbers = np.arange(len(prompts) * copies) if numbers is None else numbers
        batch = self.limits.batch.fit(max(len(prompts) * copies, room))
        self.prompt_runner.refresh()
        return Batch(
            prompts=[row for row in prompts for _ in range(copies)],
            options=options,
            size=batch,
            source=self.prompt_runner.source_length(reads, hidden),
            sources=self.prompt_runner.sources(reads, hidden, copies, batch),
            negative=None if negative is None else [row for row in negative for _ in range(copies)],
            numbers=numbers,
            drawn_by=drawn_by(options, first_row + numbers),
            **more,
        )

    def first_calls(
        self,
        rows: Rows,
        options: GenerationOptions,
        prompts: Rows | None = None,
        hidden: Any = None,
        assistant: "Generator | None" = None,
    ) -> Iterator[FirstCall]:
        """Of what a call with arguments of this size needs, for `max_new_tokens`; it takes no seed from NumPy.

        Raises:
            ValueError: as for `__call__`.
        """
        options = options.replace(seed=0) if options.do_sample and options.seed is None else options
        if hidden is not None:
            yield from self._starter.first_calls(self._batch(rows, options, prompts, hidden))
        if hidden is not None or not len(rows):
            return
        self.check(rows, options, prompts)
        stops: Any = options.stop_strings  # only whether there are any counts
        for fewer in self.limits.with_fewer_tokens(max(map(len, rows)), options):
            if self.keeps_prompts and assistant is None:
                with self.executables.warming():
                    asked = self._refill.worth_it(rows, fewer, stops=stops)
                if asked is not None:
                    self.prompt_runner.refresh()
                    yield from self._refill.first_calls(asked)
            parts = self.parts(rows, fewer)  # of a long list, too: streams and saved prompts run in batches
            for part in parts:
                begun = None if prompts is None else part.of(prompts)
                more: dict[str, Any] = dict(room=part.room, assistant=assistant)
                batch = self._batch(part.of(rows), part.options, begun, None, **more)
                yield from self._starter.first_calls(batch)
                # A part of short prompts takes smaller buckets.
                for most in self._starter.shorter_lengths(batch, part.of(rows)) if len(parts) > 1 else ():
                    short = [row[:most] for row in part.of(rows)]
                    yield from self._starter.first_calls(self._batch(short, part.options, begun, None, **more))

    def warm_up(self, calls: Iterable[FirstCall], progress: Callable[[int], OnFirstCall] = silent) -> None:
        """Compile side by side what `first_calls` need; their states hold at most `cache_bytes` at a time.

        `progress` and errors as for `warmup.warm_up`.
        """
        warm_up(calls, self.pool, self._programs.state_bytes, self.limits.most_bytes, progress)

    def number_rows(self, count: int) -> int:
        """A number for the first of `count` rows, different from those of all rows numbered before."""
        with self._numbering:
            first, self._numbered = self._numbered, (self._numbered + count) % 2**31
        return first

    @property
    def kind(self) -> str:
        """What the model is that is not a decoder whose prompts are kept, as errors call it."""
        return "an encoder-decoder" if self.has_encoder else "a model with a cache of its own"

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
            ValueError: as `__call__` does, for more rows than one batch, where prompts cannot stay, and for values
                that are NaN.
        """
        if not self.keeps_prompts:
            raise ValueError(f"Received a prompt to save for {self.kind}; expected {OUR_DECODER}.")
        options = GenerationOptions(max_new_tokens=1)
        self.check(rows, options)
        if len(parts := self.parts(rows, options)) > 1:
            raise ValueError(
                f"Received {len(rows)} prompts to save; expected at most {len(parts[0].prompts)}, one batch. Save "
                "fewer at a time."
            )
        kept = CachedPrompt.of(self.start(rows, options).generation)
        refuse_broken(kept.broken())
        return SavedPrompt(kept, self.pool, self.model.variables)

    def encode(self, features: np.ndarray) -> Any:
        """An encoder's hidden states `(batch bucket, length, hidden)` of speech `features (rows, mel, frames)`."""
        return self.prompt_runner.encode(features)

    def decoder_prompts(self, rows: Rows, options: GenerationOptions, prompts: Rows | None = None) -> Rows:
        """What the decoder begins with; arguments and errors as for `__call__`."""
        return decoder_prompts(rows, options, prompts) if self.has_encoder else rows

    @staticmethod
    def _outputs(
        run: Run,
        deadline: Deadline,
        stops: Sequence[Stop] = (),
        guides: Sequence[Guide | None] = (),
        call: GenerationOptions | None = None,
        skip_broken: bool = False,
    ) -> dict[str, np.ndarray]:
        for _ in run.advance(deadline, stops, guides, skip_broken=skip_broken):
            pass
        outputs = run.outputs(None if call is None else call.most_new_tokens, skip_broken)
        run.close()
        return outputs
