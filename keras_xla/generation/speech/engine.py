"""The engine's `Generator` as the `SpeechModel` that transcription wants."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import most_slots
from keras_xla.engine.call import Call
from keras_xla.engine.checks import check
from keras_xla.engine.generator import Generator
from keras_xla.generation.speech.timestamp_rules import TimestampOptions
from keras_xla.generation.speech.transcriber import clip_of


def check_room(generator: Generator, prompt: np.ndarray, options: GenerationOptions) -> None:
    """Raise what the generator would raise for a decoder prompt `(n,)`, but only once the encoder has run."""
    check(generator.model, [prompt], options)
    generator.limits.cache.fit(most_slots(len(prompt), options, generator.chunked))


class EngineSpeech:
    """A `SpeechModel` on a `Generator` whose processors include `timestamp_rules.timestamps_processor`.

    The batch keeps its size from call to call, so that nothing compiles again as clips end: the generator takes a row
    with an empty prompt for idle.
    """

    def __init__(self, generator: Generator):
        model: Any = generator.model  # which has a limit of positions
        self._generator = generator
        self.vocab_size: int = model.vocab_size
        self.max_positions: int = model.max_positions

    def check(self, prompt: np.ndarray, options: GenerationOptions) -> None:
        check_room(self._generator, prompt, options)

    def encode(self, features: np.ndarray) -> Any:
        return self._generator.encode(features)

    def logits(self, prompts: Sequence[np.ndarray], hidden: Any) -> np.ndarray:
        return self._generator.prompt_runner.logits(prompts, hidden)

    def decode(
        self,
        prompts: Sequence[np.ndarray],
        hidden: Any,
        options: GenerationOptions,
        timestamps: bool,
        numbers: Sequence[int],
    ) -> Mapping[str, np.ndarray]:
        values = {field.name: getattr(options, field.name) for field in dataclasses.fields(GenerationOptions)}
        timed = TimestampOptions(**values, timestamps=timestamps)
        clips = clip_of(drawn := np.array(numbers))  # by which errors call them
        return self._generator(Call([], timed, prompts, hidden, numbers=clips, first_row=drawn - clips))
