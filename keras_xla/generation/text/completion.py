"""One call of a layer: prompts as rows of ids, and what comes of them, whole or token after token."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Part, rows_of
from keras_xla.engine.call import Call
from keras_xla.engine.checks import check_assisted, check_lists
from keras_xla.engine.generator import Generator
from keras_xla.engine.padding import pad_left
from keras_xla.engine.runs.deadline import Deadline, DeadlineReached
from keras_xla.engine.runs.run import nothing
from keras_xla.engine.scorer import Logprobs, Scorer
from keras_xla.engine.states.prompt_cache import SavedPrompt
from keras_xla.generation.progress import ProgressBar
from keras_xla.generation.text import tokenizing
from keras_xla.generation.text.grammar import GrammarGuide, Grammars
from keras_xla.generation.text.logprobs import ScoredText, check_logprobs, no_arrays
from keras_xla.generation.text.options import TextOptions
from keras_xla.generation.text.pieces import TextPieces
from keras_xla.generation.text.stop_strings import StopStrings
from keras_xla.generation.tokenizer import LazyTokenizer
from keras_xla.troubleshooting import warn

# Of a call in a stream. A call costs about a millisecond beside its tokens. What takes less than a tenth of a second
# seems to happen at once (J. Nielsen, Usability Engineering, 1993, chapter 5).
PIECE_SECONDS = 0.1


@dataclass(frozen=True)
class Completion:
    """What is asked of one call.

    Attributes:
        generator: Runs the model.
        call: What it is asked for.
        tokenizer: For text and stop strings.
        text: How completions become text; None where the inputs are ids.
        cancel: Set by another thread to end the call, which returns what there is.
        goes_on: Whether rows draw on from those of earlier such calls, instead of as they would in every call: the
            batches of one `predict` do.
        output_logprobs: Whether the log-probability of each new token is told.
        top_logprobs: How many of the likeliest tokens are told beside each.
        grammars: A function that returns the `Grammars` for the tokens that end an answer.
        verbose: 0 for silence, 1 for a progress bar, `"auto"` for one where prompts run in several batches.
        numbers: Of the prompts, by which a warning calls them; from 0 on by default.

    Raises:
        ValueError: for stop strings without a tokenizer, and negative prompts without guidance.
        TypeError: for a `cancel` of another type.
    """

    generator: Generator
    call: Call
    tokenizer: LazyTokenizer | None = None
    text: TextOptions | None = None
    cancel: threading.Event | None = None
    goes_on: bool = False
    output_logprobs: bool = False
    top_logprobs: int = 0
    grammars: Callable[[tuple[int, ...]], Grammars] | None = None
    verbose: int | str = 0
    numbers: Sequence[int] = ()

    def __post_init__(self):
        call, options = self.call, self.call.options
        check_lists(options, len(call.prompts))
        check_logprobs(self.output_logprobs, self.top_logprobs, self.generator.model.vocab_size)
        if self.output_logprobs:
            Scorer(self.generator).check()
        if options.stop_strings and self.tokenizer is None:
            raise ValueError(
                f"Received stop_strings={list(options.stop_strings)}, but the layer has no tokenizer to find them "
                "with. Pass tokenizer=... to the layer."
            )
        if options.constrained:
            if self.tokenizer is None:
                raise ValueError(
                    "Received json_schema, regex or grammar, but the layer has no tokenizer. Pass tokenizer=... to it."
                )
            self._guides()  # what cannot be read is told here
        if call.assistant is not None:
            check_assisted(self.generator, call.assistant, options)
        check_led_away(call.negative, options)
        if isinstance(call.reuse, SavedPrompt) and options.guided:
            raise ValueError(
                "Received a saved prompt with guidance_scale, with which prompts run whole. Leave one out."
            )
        if self.cancel is not None and not hasattr(self.cancel, "is_set"):
            raise TypeError(f"Received cancel={self.cancel!r}; expected a threading.Event.")
        if self.text is not None and self.text.return_prompt and self.generator.has_encoder:
            raise ValueError("Received return_prompt=True; an encoder-decoder's text does not go on from its prompt.")

    def check(self, streamer: Any = None) -> None:
        """Raise for what the generator cannot run, and for what cannot be told to a `streamer`."""
        if streamer is not None:
            self._check_streamer(streamer)
        else:
            self.generator.check(self.call)

    def outputs(self, streamer: Any = None) -> dict[str, np.ndarray]:
        """All of it, as `Generator` returns it.

        Args:
            streamer: An object with Hugging Face's `put` and `end`, which is told of every token.
        """
        out = self._whole() if streamer is None else self._streamed(streamer)
        return out | self._arrays(self._scored(out), out["sequences"].shape) if self.output_logprobs else out

    def texts(self, streamer: Any = None) -> list[str | None]:
        """The text of each completion; with its log-probabilities where they were asked for.

        None where logits were NaN, if `call.skip_broken`; otherwise these are an error.
        """
        out = self._whole() if streamer is None else self._streamed(streamer)
        texts = [self._decoder(row)(new) for row, new in enumerate(_cut(out))]
        if self.output_logprobs:
            texts = [ScoredText(text, scored) for text, scored in zip(texts, self._scored(out), strict=True)]
        return [None if np.isnan(score) else text for text, score in zip(texts, out["scores"], strict=True)]

    def _whole(self) -> dict[str, np.ndarray]:
        call = self._ended_and_led().replace(first_row=self._first_row())
        outputs = self.generator(call, self._deadline(), self._report())
        named = rows_of(np.array(self.numbers, int), call.copies).tolist()
        whole = [
            None if np.isnan(score) else made for made, score in zip(_cut(outputs), outputs["scores"], strict=True)
        ]
        self._warn_of_cut_off(call.guides, whole, named or None)
        return outputs

    def _scored(self, out: dict[str, np.ndarray]) -> list[Logprobs]:
        """The log-probabilities of each completion's tokens."""
        call, answers = self.call, self.call.options.num_return_sequences
        each: np.ndarray = np.repeat(np.arange(len(call.prompts)), answers)
        begun = self.generator.decoder_prompts(call)
        rows = [np.concatenate([begun[i], new]) for i, new in zip(each, _cut(out), strict=True)]
        made = [Logprobs.none(self.top_logprobs)] * len(rows)
        some: np.ndarray = np.flatnonzero(out["lengths"])  # a call may end before its first token
        if len(some):
            reads = [call.prompts[each[i]] for i in some] if self.generator.has_encoder else None
            first, top = [len(begun[each[i]]) for i in some], self.top_logprobs
            room_for = max(len(call.prompts), call.room_for) * answers
            more: dict[str, Any] = dict(numbers=some.tolist(), room_for=room_for)
            scored = Scorer(self.generator)([rows[i] for i in some], first, reads, top, **more)
            for i, one in zip(some, scored, strict=True):
                made[i] = one
        return made

    def _arrays(self, scored: list[Logprobs], shape: tuple[int, int]) -> dict[str, np.ndarray]:
        """As arrays of the `shape` of the sequences, and with an axis more."""
        made = no_arrays(shape, self.top_logprobs)
        for row, each in enumerate(scored):
            for name, array in made.items():
                array[row, : len(each.tokens)] = getattr(each, name)
        return made

    def stream(self) -> Iterator[Any]:
        """Ids or text as they are made: pieces for one row, pairs of row and piece for several.

        Raises:
            ValueError: as for `outputs`, and for beams; before anything compiles.
        """
        self._refuse_beams("a stream")
        self.check()
        made = self._tokens() if self.text is None else self._pieces()
        return made if self._count > 1 else (piece for _, piece in made)

    def _tokens(self) -> Iterator[tuple[int, np.ndarray]]:
        """Row and new ids `(n,)`, as they are made."""
        shown = [0] * self._count
        for row, ids, _ in self._steps():
            if len(ids) > shown[row]:
                yield row, ids[shown[row] :].copy()  # a view would keep all rows in memory
                shown[row] = len(ids)

    def _pieces(self) -> Iterator[tuple[int, str]]:
        """Row and text, as it is made."""
        byte_tokens = tokenizing.byte_tokens(self._read_tokenizer())
        texts = [TextPieces(self._decoder(row), byte_tokens) for row in range(self._count)]
        for row, ids, over in self._steps():
            if piece := texts[row].add(ids, over):
                yield row, piece

    @property
    def _count(self) -> int:
        """How many completions there will be."""
        return len(self.call.prompts) * self.call.copies

    def _steps(self) -> Iterator[tuple[int, np.ndarray, bool]]:
        """Row, its new ids so far, and whether there will be no others; the last is said once of each row."""
        call, deadline, none = self._ended_and_led(), self._deadline(), np.zeros((0,), np.int32)
        for part in self.generator.parts(call):
            its, numbers, told = call.of(part), part.rows.tolist(), set()
            try:
                run = self.generator.start(its, deadline, goes_on=True)
            except DeadlineReached:
                yield from ((row, none, True) for row in numbers)
                self._warn_of_cut_off(its.guides, [none] * len(numbers), numbers)
                continue
            try:
                for _ in run.advance(deadline, its.stops, its.guides, seconds=PIECE_SECONDS):
                    for row, (ids, over) in zip(numbers, run.rows(), strict=True):
                        if row not in told:
                            told |= {row} if over else set()
                            yield row, ids, over
            except GeneratorExit:  # between two calls, where the state is whole
                run.close()
                raise
            rows = run.rows()
            run.outputs()  # raises for NaN
            run.close()
            for row, (ids, _) in zip(numbers, rows, strict=True):  # those that were cut off
                if row not in told:
                    yield row, ids, True
            self._warn_of_cut_off(its.guides, [ids for ids, _ in rows], numbers)

    def _streamed(self, streamer: Any) -> dict[str, np.ndarray]:
        part, deadline, fill = self._check_streamer(streamer), self._deadline(), self.call.options.fill
        call = self._ended_and_led().of(part)
        prompts = [prompt for prompt in self.generator.decoder_prompts(call) for _ in range(call.copies)]
        streamer.put(pad_left(prompts, len(prompts), fill)[0])
        shown = 0
        try:
            run = self.generator.start(call, deadline, goes_on=True)
        except DeadlineReached:
            streamer.end()
            outputs = nothing(len(call.prompts), call.options)
            self._warn_of_cut_off(call.guides, _cut(outputs))
            return outputs

        def tell(all_rows=False):
            """Of the steps that each row has made, or of those that any has."""
            nonlocal shown
            rows = run.rows()
            longest = max(len(ids) for ids, _ in rows)
            known = min((len(ids) for ids, over in rows if not (over or all_rows)), default=longest)
            for step in range(shown, known):
                streamer.put(np.array([ids[step] if step < len(ids) else fill for ids, _ in rows], np.int64))
            shown = max(known, shown)

        for _ in run.advance(deadline, call.stops, call.guides, seconds=PIECE_SECONDS):
            tell()
        tell(all_rows=True)
        streamer.end()
        outputs = run.outputs()
        run.close()
        self._warn_of_cut_off(call.guides, _cut(outputs))
        return outputs

    def _check_streamer(self, streamer: Any) -> Part:
        """The only part that there may be."""
        self._refuse_beams("a streamer")
        if not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise TypeError(f"Received streamer={streamer!r}; expected an object with the methods put and end.")
        self.generator.check(self.call)
        part, *others = self.generator.parts(self.call)
        if others:
            most = len(part.prompts)
            raise ValueError(
                f"Received a streamer with {len(self.call.prompts)} prompts; expected at most {most}, one batch. Pass "
                "fewer, or use layer.stream."
            )
        return part

    def _ended_and_led(self) -> Call:
        """The call with what ends and what leads its rows."""
        return self.call.replace(stops=self._stops(), guides=self._guides())

    def _first_row(self) -> int:
        """The number of the first row, on which what is drawn for it depends."""
        return self.generator.number_rows(self._count) if self.goes_on else 0

    def _report(self) -> Callable[[int], None]:
        """Tells a progress bar of finished prompts."""
        count, done = len(self.call.prompts), 0
        progress = ProgressBar("prompt", self.verbose, lambda done, whole: done < whole)
        progress(0, count)

        def report(finished: int) -> None:
            nonlocal done
            done += finished
            progress(done, count)

        return report

    def _refuse_beams(self, what: str) -> None:
        if (beams := self.call.options.num_beams) > 1:
            raise ValueError(
                f"Received {what} with num_beams={beams}; a beam search knows its tokens at the end "
                "only. Pass num_beams=1."
            )

    def _deadline(self) -> Deadline:
        return Deadline(self.call.options.max_time, self.cancel)

    def _stops(self) -> list[StopStrings]:
        options = self.call.options
        if not options.stop_strings:
            return []
        byte_tokens = tokenizing.byte_tokens(self._read_tokenizer())
        return [
            StopStrings(self._named, options.stop_strings_of(i), prompt, byte_tokens)
            for i, prompt in enumerate(self.generator.decoder_prompts(self.call))
            for _ in range(self.call.copies)
        ]

    def _guides(self) -> list[GrammarGuide | None]:
        """What leads each row."""
        options = self.call.options
        if not options.constrained:
            return []
        of_ends: Any = self.grammars  # given where a call may be constrained
        grammars = of_ends(options.eos_token_id)
        asked = [options.constraint_of(i) for i in range(len(self.call.prompts)) for _ in range(self.call.copies)]
        return [None if each is None else grammars.guide(*each) for each in asked]

    @staticmethod
    def _warn_of_cut_off(
        guides: Sequence[Any], completions: Sequence[np.ndarray | None], numbers: Sequence[int] | None = None
    ) -> None:
        numbers = range(len(guides)) if numbers is None else numbers
        cut_off = []
        for number, guide, tokens in zip(numbers, guides, completions, strict=False):
            if guide is not None and tokens is not None:
                guide.follow(tokens)
                if not guide.complete:
                    cut_off.append(number)
        if cut_off:
            warn(
                f"The answers {cut_off} ended before they had followed their json_schema, regex or grammar to its end. "
                "Pass a larger max_new_tokens, or bounds such as maxLength."
            )

    def _read_tokenizer(self) -> Any:
        return None if self.tokenizer is None else self.tokenizer.get()

    def _named(self, ids: np.ndarray) -> str:
        """The text of ids, special tokens by their names."""
        return tokenizing.plain(self._read_tokenizer(), ids, skip_special_tokens=False)

    def _decoder(self, row: int) -> Callable[[np.ndarray], str]:
        """From a row's new ids to their text."""
        # An encoder-decoder's completion stands alone.
        prompt = self.call.prompts[row // self.call.options.num_return_sequences]
        text: Any = self.text  # given where the inputs are text
        return tokenizing.decoder(self._read_tokenizer(), prompt[:0] if self.generator.has_encoder else prompt, text)


def check_led_away(negative: Any, options: GenerationOptions) -> None:
    """Raise for negative prompts that lead nothing away."""
    if negative is not None and not options.guided:
        raise ValueError("Received negative_prompt without a guidance_scale other than 1. Pass guidance_scale=1.5.")


def _cut(out: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The tokens of each completion."""
    return [sequence[:length] for sequence, length in zip(out["sequences"], out["lengths"], strict=True)]
