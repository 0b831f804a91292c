"""One batch on its way to its outputs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from keras_xla import backend
from keras_xla.config import GenerationOptions
from keras_xla.engine.runs.deadline import Deadline
from keras_xla.engine.runs.generation import CALL_SECONDS, Found, Generation


class Stop(Protocol):
    """Ends one row."""

    def find(self, tokens: np.ndarray) -> int | None:
        """After how many of its new tokens `(n,)` int32 the row ends; None while it does not."""


class Guide(Protocol):
    """Leads one row: says after each token which may come next."""

    def follow(self, tokens: np.ndarray) -> None:
        """Take note of the new tokens `(n,)` int32 so far, those of earlier calls among them."""

    @property
    def over(self) -> bool:
        """Whether nothing may come any more."""

    def allowed(self) -> np.ndarray:
        """What may come next: a bit for each token, `(V / 32,)` int32."""


class Run:
    """A generation, and which of its rows somebody asked for.

    Args:
        generation: Whose prompts have been run.
        options: What was asked for.
        busy: `(rows,)` bool, without those that only fill the bucket; False for idle ones.
        numbers: `(rows,)` ints, by which errors call them.
        words: Of 32 tokens each, that the vocabulary has.
        close: Takes the generation when it has ended.
    """

    def __init__(
        self,
        generation: Generation,
        options: GenerationOptions,
        busy: np.ndarray,
        numbers: np.ndarray,
        words: int,
        close: Callable[[Generation], None] = Generation.close,
    ):
        self.generation, self._options, self._busy, self._close = generation, options, busy, close
        self._numbers, self._words = numbers, words
        self._spoiled: bool | None = None  # unknown before `outputs`
        self._stuck = np.zeros_like(busy)  # rows whose guides let nothing follow that the options leave

    def advance(
        self,
        deadline: Deadline,
        stops: Sequence[Stop] = (),
        guides: Sequence[Guide | None] = (),
        count: int | None = None,
        seconds: float = CALL_SECONDS,
        skip_broken: bool = False,
    ) -> Iterator[None]:
        """Make all tokens, unless the call ends before; comes back after each call of the executable.

        Args:
            deadline: Ends the call before.
            stops: What ends each row before.
            guides: What leads each row; then each call makes one token.
            count: Runs of the model a call of the executable; by default as many as are worth one.
            seconds: That such a call takes at most, if it makes more than one token; less than the default comes back
                after the first token.
            skip_broken: Whether a row whose guide lets nothing follow ends, and the others go on.
        """
        self._look(stops)
        self._lead(guides, skip_broken)
        count, first = 1 if any(guides) else count, 1 if seconds < CALL_SECONDS else None
        while self.generation.unfinished and not deadline.over:
            self.generation.advance(count or first, min(seconds, deadline.seconds))
            self._look(stops)
            self._lead(guides, skip_broken)
            first = None
            yield

    def rows(self) -> list[tuple[np.ndarray, bool]]:
        """Of each row the new tokens so far, and whether there will be no others; not for beams."""
        return self.generation.rows()[: len(self._busy)]

    def outputs(self, width: int | None = None, skip_broken: bool = False) -> dict[str, np.ndarray]:
        """What `Generator` returns, sequences of a `width`: by default `max_new_tokens`.

        Raises:
            ValueError: if logits are NaN; with `skip_broken` such rows have no tokens, and NaN as their score.
        """
        options, count, found = self._options, len(self._busy), self.generation.found()
        broken = self._broken(found)
        self._spoiled = broken.any() or self.generation.spoiled
        if skip_broken:
            found.lengths[:count][broken], found.scores[:count][broken] = 0, np.nan
        else:
            refuse_broken(self._numbers[broken])
        wanted = options.num_return_sequences if options.num_beams > 1 else 1
        tokens, lengths, scores = (
            x[:count, :wanted].reshape(count * wanted, *x.shape[2:])
            for x in (found.tokens, found.lengths, found.scores)
        )
        sequences = np.full((count * wanted, width or options.most_new_tokens), options.fill, np.int32)
        sequences[:, : tokens.shape[1]] = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, options.fill)
        return {"sequences": sequences, "lengths": lengths, "scores": scores}

    def close(self) -> None:
        """Let go of the generation; nothing else may be asked. A state with NaN in it serves nobody else."""
        with backend.outside_of_traces():  # Python may collect a stream as garbage while a function is traced
            if self._spoiled is None:  # a stream that nobody reads any further
                self._spoiled = self._broken(self.generation.found()).any() or self.generation.spoiled
            if not self._spoiled:
                self._close(self.generation)

    def _broken(self, found: Found) -> np.ndarray:
        """Whether the logits of each row were NaN, or its guide stuck; idle rows find nothing."""
        return self._busy & (found.broken[: len(self._busy)] | self._stuck)

    def _look(self, stops: Sequence[Stop]) -> None:
        if not stops:
            return
        for row, (stop, (tokens, _)) in enumerate(zip(stops, self.rows(), strict=True)):
            # A finished row, too: an end-of-sequence token may have come after the stop string, in the same call.
            if (length := stop.find(tokens)) is not None:
                self.generation.stop(row, length)

    def _lead(self, guides: Sequence[Guide | None], skip_broken: bool) -> None:
        if not any(guides):
            return
        may = np.full((self.generation.batch, self._words), -1, np.int32)
        for row, (guide, (tokens, over)) in enumerate(zip(guides, self.rows(), strict=True)):
            if guide is None or self._stuck[row]:
                continue
            try:
                guide.follow(tokens)
                if not (guide.over or over):
                    may[row] = guide.allowed()
            except ValueError:
                if not skip_broken:
                    raise
                self._stuck[row] = True
                self.generation.stop(row, 0)
                continue
            if guide.over and not over:
                self.generation.stop(row, len(tokens))
        self.generation.allow(may)


def refuse_broken(rows: Sequence[int]) -> None:
    """Raise a ValueError if there are rows whose logits are NaN, or that no token was left for, by their numbers."""
    if len(rows):
        raise ValueError(
            f"The model's logits are NaN for rows {list(map(int, rows))}, or the options forbid every token: weights "
            "hold NaN or infinity, the dtype overflows, a logits processor returns NaN, or options such as "
            "suppress_tokens, bad_words_ids and no_repeat_ngram_size leave no token. Check the weights, or loosen the "
            "options."
        )


def allowed(guides: Sequence[Guide | None], batch: int, words: int, skip_broken: bool = False) -> np.ndarray:
    """What the rows of a batch may begin with; everything where nothing leads them.

    With `skip_broken` also where a guide lets nothing follow: `Run.advance` ends that row.
    """
    made = np.full((batch, words), -1, np.int32)
    for row, guide in enumerate(guides):
        try:
            if guide is not None and not guide.over:
                made[row] = guide.allowed()
        except ValueError:
            if not skip_broken:
                raise
    return made


def nothing(rows: int, options: GenerationOptions) -> dict[str, np.ndarray]:
    """The outputs for rows of which no token was made."""
    count = rows * options.num_return_sequences
    return {
        "sequences": np.full((count, options.most_new_tokens), options.fill, np.int32),
        "lengths": np.zeros((count,), np.int32),
        "scores": np.zeros((count,), np.float32),
    }
