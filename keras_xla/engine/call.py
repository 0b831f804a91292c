"""What a call asks of a generator: prompts, and what goes with each of them."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import Part, copies_of
from keras_xla.engine.padding import Rows
from keras_xla.engine.runs.run import Guide, Stop
from keras_xla.engine.states.prompt_cache import PromptCache, SavedPrompt

if TYPE_CHECKING:
    from keras_xla.engine.generator import Generator


@dataclass(frozen=True)
class Call:
    """Prompts, and what goes with each of them. A prompt has a row for each of its `copies`.

    Attributes:
        prompts: What is completed, or what an encoder-decoder reads: 1-D int32 arrays, no padding.
        options: What to generate.
        decoder: What an encoder-decoder's completions begin with; None for `options.decoder_start_token_id`.
        hidden: Instead of `prompts`, what `Generator.encode` returned; an empty row of `decoder` then is idle.
        negative: For guidance, what completions are led away from: one for each prompt, or one for all; None for each
            prompt's last token.
        stops: What ends each row before; empty for nothing.
        guides: What leads each row; empty for nothing.
        reuse: Where the prompts' beginnings may stand already, and where they are put.
        assistant: The generator of a smaller model, which guesses tokens; a decoder with the same vocabulary.
        numbers: `(rows,)` ints, those of the rows, by which errors call them; from 0 on by default.
        first_row: Added to the rows' numbers: on the sum depends what is drawn, but not where each prompt has a seed.
            Then its answers are those that it would have alone.
        skip_broken: Whether rows whose logits are NaN have no tokens, and NaN as their score, instead of an error.
        room_for: Prompts for which a batch has room, with those that were left out; see `split`.
    """

    prompts: Rows
    options: GenerationOptions
    decoder: Rows | None = None
    hidden: Any = None
    negative: Rows | None = None
    stops: Sequence[Stop] = ()
    guides: Sequence[Guide | None] = ()
    reuse: PromptCache | SavedPrompt | None = None
    assistant: "Generator | None" = None
    numbers: np.ndarray | None = None
    first_row: int | np.ndarray = 0
    skip_broken: bool = False
    room_for: int = 0

    @property
    def copies(self) -> int:
        """Rows that each prompt takes."""
        return copies_of(self.options)

    @functools.cached_property
    def negative_prompts(self) -> Rows | None:
        """For guidance, what each prompt's completions are led away from; None without.

        Raises:
            ValueError: for another number of `negative` than of prompts.
        """
        if self.negative is None:
            return [row[-1:] for row in self.prompts] if self.options.guided else None
        return one_for_each(self.negative, len(self.prompts))

    def replace(self, **fields: Any) -> "Call":
        """With other values."""
        return dataclasses.replace(self, **fields)

    def of(self, part: Part) -> "Call":
        """What of it belongs to some of its prompts."""
        decoder, negative = (None if x is None else part.of(x) for x in (self.decoder, self.negative_prompts))
        return self.replace(
            prompts=part.of(self.prompts),
            options=part.options,
            decoder=decoder,
            negative=negative,
            stops=part.of_rows(self.stops),
            guides=part.of_rows(self.guides),
            numbers=part.rows if self.numbers is None else self.numbers[part.rows],
            room_for=part.room_for or self.room_for,
        )


def one_for_each(negative: Rows, count: int) -> Rows:
    """Negative prompts for `count` prompts: one for each, or one for all.

    Raises:
        ValueError: for another number of them.
    """
    if len(negative) == 1:
        return list(negative) * count
    if len(negative) != count:
        raise ValueError(
            f"Received {len(negative)} negative prompts for {count} prompts; expected one for each, or one for all."
        )
    return negative
