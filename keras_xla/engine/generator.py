"""From ragged rows of ids to completions: checks, buckets, the right executables, and back."""

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Limits, Part, drawn_by, most_slots, rows_of, split
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.checks import check, check_negative, check_speech, decoder_prompts
from keras_xla.engine.executables import Executables
from keras_xla.engine.padding import Rows
from keras_xla.engine.programs import Programs
from keras_xla.engine.runs.continuous_batching import ContinuousBatching, LongList
from keras_xla.engine.runs.deadline import Deadline, DeadlineReached
from keras_xla.engine.runs.run import Run, nothing, refuse_broken
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
        self._starter, self._continuous = Starter(*made, cache, cache_bytes), ContinuousBatching(*made, self.limits)
        self._numbering, self._numbered = threading.Lock(), 0

    def __call__(
        self, call: Call, deadline: Deadline | None = None, report: Callable[[int], None] = lambda prompts: None
    ) -> dict[str, np.ndarray]:
        """Complete all prompts of a call.

        Args:
            call: What is asked for.
            deadline: Ends the call before; by default `max_time` of its options does.
            report: Called with how many prompts have just been finished.

        Returns:
            `sequences (prompts * num_return_sequences, max_new_tokens)` int32, new tokens only,
            right-padded; `lengths` int32, tokens generated, an end-of-sequence token included; `scores`
            float32: the sum of their log-probabilities under the model, or a beam's score.

        Raises:
            ValueError: for what `check` refuses; before anything compiles. Also if the model's logits are NaN, unless
                `call.skip_broken`.
        """
        deadline = Deadline(call.options.max_time) if deadline is None else deadline
        if call.hidden is not None:  # one batch already
            return self._outputs(self.start(call, goes_on=not deadline.of_time), call, deadline)
        self.check(call)  # all prompts, before the first batch runs
        if (asked := self._long_list(call)) is not None:
            return self._outputs_of_list(asked, call, deadline, report)
        made, order = [], []
        for part in self.parts(call):
            try:
                outputs = self._outputs_of_part(part, call, deadline)
            except DeadlineReached:
                outputs = nothing(len(part.prompts), call.options)
            made.append(outputs)
            order.append(part.answers)
            report(len(part.prompts))
        back = np.argsort(np.concatenate(order))
        return {name: np.concatenate([outputs[name] for outputs in made])[back] for name in made[0]}

    def _long_list(self, call: Call) -> LongList | None:
        """The rows of a call, if they are to take turns."""
        if not self.keeps_prompts or any(call.guides) or call.reuse is not None or call.assistant is not None:
            return None
        # What runs again is looked at from its beginning again.
        return self._continuous.worth_it(call.replace(stops=[copy.copy(stop) for stop in call.stops]))

    def _outputs_of_list(
        self, asked: LongList, call: Call, deadline: Deadline, report: Callable[[int], None]
    ) -> dict[str, np.ndarray]:
        """Where logits were NaN, which may have come from another row, prompts run once more in batches."""
        self.prompt_runner.refresh()
        outputs, answers = self._continuous.outputs(asked, call, deadline, report), call.options.num_return_sequences
        broken = np.unique(np.flatnonzero(np.isnan(outputs["scores"])) // answers)
        if not len(broken):
            return outputs
        again = call.replace(room_for=len(call.prompts)).of(Part(broken, call.options.of_rows(broken)))
        for part in self.parts(again):
            try:
                mended = self._outputs_of_part(part, again, deadline, call.options.most_new_tokens)
            except DeadlineReached:  # their scores stay NaN
                break
            for name, values in outputs.items():
                values[rows_of(broken[part.prompts], answers)] = mended[name]
        return outputs

    def _outputs_of_part(
        self, part: Part, call: Call, deadline: Deadline, width: int | None = None
    ) -> dict[str, np.ndarray]:
        """Of prompts that run together, with sequences of a `width`: by default `max_new_tokens` of the call.

        Raises:
            DeadlineReached: if `deadline` is over before the prompts have run.
        """
        its = call.of(part)
        run = self.start(its, deadline, goes_on=True)
        return self._outputs(run, its, deadline, width or call.options.most_new_tokens)

    def parts(self, call: Call) -> list[Part]:
        """Which prompts, or sources, run together."""
        lengths = [len(row) for row in call.prompts]
        if (negative := call.negative_prompts) is not None:
            lengths = [max(pair) for pair in zip(lengths, map(len, negative), strict=True)]
        alone = max(len(lengths), call.room_for) * call.copies == 1  # whatever its cache takes
        most = 1 if alone else self.limits.rows(max(lengths), call.options)
        return split(lengths, call.options, most, self._fit, call.room_for)

    def _fit(self, longest: int, options: GenerationOptions) -> bool:
        """For `split`; of encoder-decoders only the lengths of sources are known, so theirs are not looked at."""
        return self.has_encoder or self.limits.cache.holds(most_slots(longest, options, self.chunked))

    def check(self, call: Call) -> tuple[Rows, Rows | None]:
        """Raise what `__call__` raises before anything compiles.

        Returns:
            What the decoder begins with, and what the encoder reads if there is one that has to.
        """
        options, begun = call.options, self.decoder_prompts(call)
        if options.prompt_lookup_num_tokens and not self.chunked:
            raise ValueError(
                f"Received prompt_lookup_num_tokens={options.prompt_lookup_num_tokens} for a model with a cache of its "
                "own, which runs one token at a time; expected it with a model of keras_xla's."
            )
        if options.guided and not self.keeps_prompts:
            raise ValueError(f"Received guidance_scale for {self.kind}; expected it with {OUR_DECODER}.")
        check_processor_options(self.processors, options, self.model.vocab_size)
        encoded = call.hidden is not None
        reads = call.prompts if self.has_encoder and not encoded else None
        check(self.model, [row for row in begun if len(row) or not encoded], options, reads)
        negative = call.negative_prompts or []
        check_negative(self.model, negative, options)
        parts = [Part(np.arange(len(begun)), options)] if encoded else self.parts(call)
        for part in parts:  # rows of one batch end together, and go on until the last one is done
            longest = max(map(len, [*part.of(begun), *(part.of(negative) if negative else [])]))
            self.limits.cache.fit(most_slots(longest, part.options, self.chunked))
        if reads is None and self.has_encoder:
            check_speech(options)
        self.prompt_runner.source_length(reads, call.hidden)
        if not encoded:
            self.limits.batch.fit(max(len(part.rows) for part in parts))
        return begun, reads

    def start(self, call: Call, deadline: Deadline | None = None, goes_on: bool = False) -> Run:
        """Run the prompts of one batch, which all those of the call are.

        Args:
            call: What is asked for. Its stops and guides are for `Run.advance`; guides say what comes first, too.
            deadline: May be over before the prompts have run.
            goes_on: Whether tokens are made at once.

        Raises:
            DeadlineReached: if `deadline` was.
            ValueError: for what `check` refuses.
        """
        return self._starter(self._batch(call), deadline, goes_on)

    def _batch(self, call: Call) -> Batch:
        begun, reads = self.check(call)
        copies, negative = call.copies, call.negative_prompts
        count = len(begun) * copies
        options = call.options.of_rows(np.repeat(np.arange(len(begun)), copies))
        numbers = np.arange(count) if call.numbers is None else call.numbers
        size = self.limits.batch.fit(max(count, call.room_for * copies))
        self.prompt_runner.refresh()
        return Batch(
            prompts=[row for row in begun for _ in range(copies)],
            options=options,
            size=size,
            source=self.prompt_runner.source_length(reads, call.hidden),
            sources=self.prompt_runner.sources(reads, call.hidden, copies, size),
            negative=None if negative is None else [row for row in negative for _ in range(copies)],
            numbers=numbers,
            drawn_by=drawn_by(options, call.first_row + numbers),
            guides=call.guides,
            reuse=call.reuse,
            assistant=call.assistant,
            skip_broken=call.skip_broken,
        )

    def first_calls(self, call: Call) -> Iterator[FirstCall]:
        """Of what a call of this size needs, for `max_new_tokens`; it takes no seed from NumPy.

        Raises:
            ValueError: as for `__call__`.
        """
        if call.options.do_sample and call.options.seed is None:
            call = call.replace(options=call.options.replace(seed=0))
        if call.hidden is not None:
            yield from self._starter.first_calls(self._batch(call))
        if call.hidden is not None or not len(call.prompts):
            return
        self.check(call)
        for options in self.limits.with_fewer_tokens(max(map(len, call.prompts)), call.options):
            fewer = call.replace(options=options)
            if self.keeps_prompts and call.assistant is None:
                stops: Any = options.stop_strings  # only whether there are any counts
                with self.executables.warming():
                    asked = self._continuous.worth_it(fewer.replace(stops=stops))
                if asked is not None:
                    self.prompt_runner.refresh()
                    yield from self._continuous.first_calls(asked)
            parts = self.parts(fewer)  # of a long list, too: streams and saved prompts run in batches
            for its in map(fewer.of, parts):
                batch = self._batch(its)
                yield from self._starter.first_calls(batch)
                # A part of short prompts takes smaller buckets.
                for most in self._starter.shorter_lengths(batch, its.prompts) if len(parts) > 1 else ():
                    short = its.replace(prompts=[row[:most] for row in its.prompts])
                    yield from self._starter.first_calls(self._batch(short))

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
        call = Call(rows, GenerationOptions(max_new_tokens=1))
        self.check(call)
        if len(parts := self.parts(call)) > 1:
            raise ValueError(
                f"Received {len(rows)} prompts to save; expected at most {len(parts[0].prompts)}, one batch. Save "
                "fewer at a time."
            )
        kept = CachedPrompt.of(self.start(call).generation)
        refuse_broken(kept.broken())
        return SavedPrompt(kept, self.pool, self.model.variables)

    def encode(self, features: np.ndarray) -> Any:
        """An encoder's hidden states `(batch bucket, length, hidden)` of speech `features (rows, mel, frames)`."""
        return self.prompt_runner.encode(features)

    def decoder_prompts(self, call: Call) -> Rows:
        """What the decoder begins with; errors as for `__call__`."""
        return decoder_prompts(call.prompts, call.options, call.decoder) if self.has_encoder else call.prompts

    @staticmethod
    def _outputs(run: Run, call: Call, deadline: Deadline, width: int | None = None) -> dict[str, np.ndarray]:
        """All that a run of a call makes; `width` as for `Run.outputs`."""
        for _ in run.advance(deadline, call.stops, call.guides, skip_broken=call.skip_broken):
            pass
        outputs = run.outputs(width, call.skip_broken)
        run.close()
        return outputs
