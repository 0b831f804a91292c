"""One call of a layer: prompts as rows of ids, and what comes of them, whole or token after token."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.generator import Generator, Rows, copies_of
from keras_xla.engine.prompt_cache import PromptCache
from keras_xla.engine.search.request import pad_left
from keras_xla.engine.watch import Watch
from keras_xla.generation import tokenizing
from keras_xla.generation.stop_strings import StopStrings
from keras_xla.generation.text_options import TextOptions
from keras_xla.generation.text_pieces import TextPieces

PIECE_SECONDS = 0.05  # between the pieces of a stream, where a token takes less: a reader sees no difference


@dataclass(frozen=True)
class Completion:
    """What is asked of one call.

    Attributes:
        generator: Runs the model.
        options: What to generate.
        rows: 1-D int32 arrays: prompts, or what an encoder-decoder reads.
        decoder: What an encoder-decoder's completions begin with; None for its start token.
        tokenizer: For text and stop strings.
        text: How completions become text; None where the inputs are ids.
        cancel: Set by another thread to end the call, which returns what there is.
        reuse: Where the prompts' beginnings may stand already, and where they are put.
        goes_on: Whether rows draw on from those of earlier such calls, instead of as they would in every call: the
            batches of one `predict` do.

    Raises:
        ValueError: for stop strings without a tokenizer.
        TypeError: for a `cancel` of another type.
    """

    generator: Generator
    options: GenerationOptions
    rows: Rows
    decoder: Rows | None = None
    tokenizer: Any = None
    text: TextOptions | None = None
    cancel: threading.Event | None = None
    reuse: PromptCache | None = None
    goes_on: bool = False

    def __post_init__(self):
        if self.options.stop_strings and self.tokenizer is None:
            raise ValueError(
                f"Received stop_strings={list(self.options.stop_strings)}, but the layer has no tokenizer to find them "
                "with. Pass tokenizer=... to the layer."
            )
        if self.cancel is not None and not hasattr(self.cancel, "is_set"):
            raise TypeError(f"Received cancel={self.cancel!r}; expected a threading.Event.")
        if self.text is not None and self.text.return_prompt and self.generator.has_encoder:
            raise ValueError("Received return_prompt=True; an encoder-decoder's text does not go on from its prompt.")

    def outputs(self, streamer: Any = None) -> dict[str, np.ndarray]:
        """All of it, as `Generator` returns it.

        Args:
            streamer: An object with Hugging Face's `put` and `end`, which is told of every token.
        """
        if streamer is not None:
            return self._streamed(streamer)
        return self.generator(
            self.rows,
            self.options,
            self.decoder,
            watch=self._watch(),
            stops=self._stops(),
            reuse=self.reuse,
            first_row=self._first_row(),
        )

    def texts(self, streamer: Any = None) -> list[str]:
        """The text of each completion."""
        out = self.outputs(streamer)
        made = [sequence[:length] for sequence, length in zip(out["sequences"], out["lengths"], strict=True)]
        return [self._decoder(row)(new) for row, new in enumerate(made)]

    def stream(self) -> Iterator[Any]:
        """Ids or text as they are made: pieces for one row, pairs of row and piece for several.

        Raises:
            ValueError: as for `outputs`, and for beams; before anything compiles.
        """
        self._refuse_beams("a stream")
        self.generator.check(self.rows, self.options, self.decoder)
        made = self._tokens() if self.text is None else self._pieces()
        return made if self._count > 1 else (piece for _, piece in made)

    def _tokens(self) -> Iterator[tuple[int, np.ndarray]]:
        """Row and new ids `(n,)`, as they are made."""
        shown = [0] * self._count
        for row, ids, _ in self._steps():
            if len(ids) > shown[row]:
                yield row, ids[shown[row] :]
                shown[row] = len(ids)

    def _pieces(self) -> Iterator[tuple[int, str]]:
        """Row and text, as it is made."""
        texts = [TextPieces(self._decoder(row)) for row in range(self._count)]
        for row, ids, over in self._steps():
            if piece := texts[row].add(ids, over):
                yield row, piece

    @property
    def _count(self) -> int:
        """How many completions there will be."""
        return len(self.rows) * copies_of(self.options)

    def _steps(self) -> Iterator[tuple[int, np.ndarray, bool]]:
        """Row, its new ids so far, and whether there will be no others; the last is said once of each row."""
        watch, stops, copies = self._watch(), self._stops(), copies_of(self.options)
        for part in self.generator.batches(len(self.rows), self.options):
            first, last = part.start * copies, part.stop * copies
            if watch.over:
                return
            run, told = self._start(part), set()
            try:
                for _ in run.advance(watch, stops[first:last], seconds=PIECE_SECONDS):
                    for row, (ids, over) in enumerate(run.rows()):
                        if row not in told:
                            told |= {row} if over else set()
                            yield first + row, ids, over
            except GeneratorExit:  # between two calls, where the state is whole
                run.close()
                raise
            rows = run.rows()
            run.outputs()  # raises for NaN
            run.close()
            for row, (ids, _) in enumerate(rows):  # those that were cut off
                if row not in told:
                    yield first + row, ids, True

    def _streamed(self, streamer: Any) -> dict[str, np.ndarray]:
        self._refuse_beams("a streamer")
        if not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise TypeError(f"Received streamer={streamer!r}; expected an object with the methods put and end.")
        batches = list(self.generator.batches(len(self.rows), self.options))
        if len(batches) > 1:
            raise ValueError(f"Received a streamer with {len(self.rows)} prompts; expected at most {batches[0].stop}.")
        watch, fill = self._watch(), self.options.fill
        prompts, _ = self.generator.check(self.rows, self.options, self.decoder)  # before the streamer is told anything
        prompts = [prompt for prompt in prompts for _ in range(copies_of(self.options))]
        streamer.put(pad_left(prompts, len(prompts), fill)[0])
        run, shown = self._start(slice(0, len(self.rows))), 0

        def tell():
            nonlocal shown
            rows = [ids for ids, _ in run.rows()]
            for step in range(shown, max(map(len, rows))):
                streamer.put(np.array([ids[step] if step < len(ids) else fill for ids in rows], np.int64))
            shown = max(map(len, rows))

        for _ in run.advance(watch, self._stops(), seconds=PIECE_SECONDS):
            tell()
        tell()  # what there was without a step
        streamer.end()
        outputs = run.outputs()
        run.close()
        return outputs

    def _start(self, part: slice):
        decoder = None if self.decoder is None else self.decoder[part]
        first = part.start * copies_of(self.options)
        return self.generator.start(self.rows[part], self.options, decoder, reuse=self.reuse, first_row=first)

    def _first_row(self) -> int:
        """The number of the first row, on which what is drawn for it depends."""
        return self.generator.number_rows(self._count) if self.goes_on else 0

    def _refuse_beams(self, what: str) -> None:
        if self.options.num_beams > 1:
            raise ValueError(
                f"Received {what} with num_beams={self.options.num_beams}; a beam search knows its tokens at the end "
                "only. Pass num_beams=1."
            )

    def _watch(self) -> Watch:
        return Watch(self.options.max_time, self.cancel)

    def _stops(self) -> list[StopStrings]:
        if not self.options.stop_strings:
            return []
        copies = copies_of(self.options)
        prompts = self.generator.decoder_prompts(self.rows, self.options, self.decoder)
        before = [prompt for prompt in prompts for _ in range(copies)]
        return [StopStrings(self._named, self.options.stop_strings, prompt) for prompt in before]

    def _named(self, ids: np.ndarray) -> str:
        """The text of ids, special tokens by their names."""
        return tokenizing.plain(self.tokenizer, ids, skip_special_tokens=False)

    def _decoder(self, row: int) -> Callable[[np.ndarray], str]:
        """From a row's new ids to their text."""
        # An encoder-decoder's completion stands alone.
        prompt = self.rows[row // self.options.num_return_sequences]
        return tokenizing.decoder(self.tokenizer, prompt[:0] if self.generator.has_encoder else prompt, self.text)
