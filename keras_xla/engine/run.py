"""One batch on its way to its outputs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.generation import CALL_SECONDS, Generation
from keras_xla.engine.watch import Watch


class Stop(Protocol):
    """Ends one row."""

    def find(self, tokens: np.ndarray) -> int | None:
        """After how many of its new tokens `(n,)` int32 the row ends; None while it does not."""


class Run:
    """A generation, and which of its rows somebody asked for.

    Args:
        generation: Whose prompts have been run.
        options: What was asked for.
        busy: `(rows,)` bool, without those that only fill the bucket; False for idle ones.
        close: Takes the generation when it has ended.
    """

    def __init__(
        self,
        generation: Generation,
        options: GenerationOptions,
        busy: np.ndarray,
        close: Callable[[Generation], None] = Generation.close,
    ):
        self.generation, self._options, self._busy, self._close = generation, options, busy, close

    def advance(
        self,
        watch: Watch,
        stops: Sequence[Stop] = (),
        count: int | None = None,
        seconds: float = CALL_SECONDS,
    ) -> Iterator[None]:
        """Make all tokens, unless the call ends before; comes back after each call of the executable.

        Args:
            watch: Ends the call before.
            stops: What ends each row before.
            count: Tokens a call of the executable; by default as many as are worth one.
            seconds: That such a call takes at most, if it makes more than one token; less than the default comes back
                after the first token.
        """
        self._look(stops)
        first = 1 if seconds < CALL_SECONDS else None
        while self.generation.unfinished and not watch.over:
            self.generation.advance(count or first, min(seconds, watch.seconds))
            self._look(stops)
            first = None
            yield

    def rows(self) -> list[tuple[np.ndarray, bool]]:
        """Of each row the new tokens so far, and whether there will be no others; not for beams."""
        return self.generation.rows()[: len(self._busy)]

    def outputs(self) -> dict[str, np.ndarray]:
        """What `Generator` returns."""
        options, count, found = self._options, len(self._busy), self.generation.found()
        if (bad := np.flatnonzero(self._busy & found.broken[:count])).size:  # idle rows find nothing
            raise ValueError(
                f"The model's logits are NaN for rows {bad.tolist()}; its weights hold NaN or infinity, or its dtype "
                "overflows. Check the weights."
            )
        wanted = options.num_return_sequences if options.num_beams > 1 else 1
        tokens, lengths, scores = (
            x[:count, :wanted].reshape(count * wanted, *x.shape[2:])
            for x in (found.tokens, found.lengths, found.scores)
        )
        sequences = np.full((count * wanted, options.max_new_tokens), options.fill, np.int32)
        sequences[:, : tokens.shape[1]] = np.where(np.arange(tokens.shape[1]) < lengths[:, None], tokens, options.fill)
        return {"sequences": sequences, "lengths": lengths, "scores": scores}

    def close(self) -> None:
        """Let go of the generation; nothing else may be asked."""
        self._close(self.generation)

    def _look(self, stops: Sequence[Stop]) -> None:
        if not stops:
            return
        for row, (stop, (tokens, _)) in enumerate(zip(stops, self.rows(), strict=True)):
            # A finished row, too: an end-of-sequence token may have come after the stop string, in the same call.
            if (length := stop.find(tokens)) is not None:
                self.generation.stop(row, length)


def nothing(rows: int, options: GenerationOptions) -> dict[str, np.ndarray]:
    """The outputs for rows of which no token was made."""
    count = rows * options.num_return_sequences
    return {
        "sequences": np.full((count, options.max_new_tokens), options.fill, np.int32),
        "lengths": np.zeros((count,), np.int32),
        "scores": np.zeros((count,), np.float32),
    }
