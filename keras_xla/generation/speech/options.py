"""Options of a transcription: frozen, checked once, before anything compiles. Standard library only."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

CONDITION_TYPES = ("first-segment", "all-segments")


@dataclass(frozen=True)
class SpeechOptions:
    """Options of one transcription, named as in Hugging Face's `WhisperForConditionalGeneration.generate`.

    They are passed by name to `XLAGenerationLayer` and its `generate`, if the model reads speech. A model hears a
    window of a clip at a time, 30 seconds for Whisper. The algorithm is that of Whisper (Radford et al., "Robust speech
    recognition via large-scale weak supervision", 2022, section 3.8).

    Attributes:
        language: The spoken language (`"de"`, `"German"` or `"<|de|>"`), or one for each clip. None for the one that
            the checkpoint names, or else to detect it, in the first window of each clip.
        task: `"transcribe"`, or `"translate"` (into English). None for the checkpoint's own, as a rule `"transcribe"`.
        return_timestamps: Whether to find out when things are said. None does where it has to be: in clips longer
            than a window. False is an error for those.
        initial_prompt: Text that sets style and spelling, as if it had been said before the clip. None for none.
        prompt_ids: The same as token ids, with or without `<|startofprev|>`; one of the two only. Empty for none.
        prompt_condition_type: With `condition_on_prev_tokens`, whether the prompt stands at the beginning of what was
            said (`"first-segment"`), or before what was said in every window (`"all-segments"`).
        condition_on_prev_tokens: Whether each window is told what was said in those before.
        temperature: 0 takes the most likely tokens, above 0 they are drawn. Several are tried one after the other while
            the thresholds reject the outcome; Whisper's own are `(0.0, 0.2, 0.4, 0.6, 0.8, 1.0)`. None is 0, or what
            `GenerationOptions` say with `do_sample`.
        compression_ratio_threshold: Reject token ids that zlib makes shorter by a factor above this, as they repeat
            themselves; such as 1.35. None rejects nothing.
        logprob_threshold: Reject what has a mean log-probability a token, in nats, below this; such as -1.0. None
            rejects nothing.
        no_speech_threshold: Take a window for silence if that has a probability above this, unless
            `logprob_threshold` is given and accepts what was made; such as 0.6. None takes none for silence.
        max_new_tokens: The most tokens that a window may have; None for all that the model has positions for.

    Raises:
        ValueError: A value is out of range; the message names the option, the value and the range.
        TypeError: A value has the wrong type.
    """

    language: str | tuple[str, ...] | None = None
    task: str | None = None
    return_timestamps: bool | None = None
    initial_prompt: str | None = None
    prompt_ids: tuple[int, ...] = ()
    prompt_condition_type: str = "first-segment"
    condition_on_prev_tokens: bool = False
    temperature: float | tuple[float, ...] | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    max_new_tokens: int | None = None

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        if isinstance(self.language, list):
            put("language", tuple(self.language))
        if not isinstance(self.return_timestamps, bool | None):
            raise TypeError(f"Received return_timestamps={self.return_timestamps!r}; expected True, False or None.")
        if not isinstance(self.condition_on_prev_tokens, bool):
            raise TypeError(
                f"Received condition_on_prev_tokens={self.condition_on_prev_tokens!r}; expected True or False."
            )
        if self.prompt_condition_type not in CONDITION_TYPES:
            raise ValueError(
                f"Received prompt_condition_type={self.prompt_condition_type!r}; expected one of "
                f"{', '.join(CONDITION_TYPES)}."
            )
        if self.prompt_condition_type == "all-segments" and not self.condition_on_prev_tokens:
            raise ValueError(
                'Received prompt_condition_type="all-segments" with condition_on_prev_tokens=False, where the prompt '
                "stands before every window anyway. Leave it out, or pass condition_on_prev_tokens=True."
            )
        self._put_prompt(put)
        self._put_numbers(put)

    def _put_prompt(self, put):
        if self.initial_prompt is not None and not isinstance(self.initial_prompt, str):
            raise TypeError(f"Received initial_prompt={self.initial_prompt!r}; expected a string.")
        ids = self.prompt_ids
        ids = ids.tolist() if hasattr(ids, "tolist") else () if ids is None else ids
        if not isinstance(ids, (list, tuple)) or not all(isinstance(i, Integral) and i >= 0 for i in ids):
            raise TypeError(f"Received prompt_ids={self.prompt_ids!r}; expected one list of token ids.")
        put("prompt_ids", tuple(int(i) for i in ids))
        if self.prompt_ids and self.initial_prompt:
            raise ValueError("Received both initial_prompt and prompt_ids, which are the same thing. Pass one of them.")

    def _put_numbers(self, put):
        if self.temperature is not None:
            several = self.temperature if isinstance(self.temperature, (list, tuple)) else (self.temperature,)
            if not several:
                raise ValueError(f"Received temperature={self.temperature!r}; expected at least one.")
            put("temperature", tuple(_number("temperature", t, 0.0, math.inf) for t in several))
        bounds = {
            "compression_ratio_threshold": (0.0, math.inf),
            "logprob_threshold": (-math.inf, 0.0),
            "no_speech_threshold": (0.0, 1.0),
        }
        for name, (low, high) in bounds.items():
            if (value := getattr(self, name)) is not None:
                put(name, _number(name, value, low, high))
        most = self.max_new_tokens
        if most is not None and (isinstance(most, bool) or not isinstance(most, Integral)):
            raise TypeError(f"Received max_new_tokens={most!r} of type {type(most).__name__}; expected an int.")
        if most is not None and most < 1:
            raise ValueError(f"Received max_new_tokens={most}; expected an int of at least 1.")

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those to try one after the other (floats); none where `GenerationOptions` say it."""
        return self.temperature if isinstance(self.temperature, tuple) else ()

    def replace(self, **overrides: Any) -> "SpeechOptions":
        """Return these options with some of them changed; a prompt replaces the other kind of prompt.

        Args:
            **overrides: New values by name.

        Returns:
            New `SpeechOptions`.

        Raises:
            ValueError: A value is out of range.
            TypeError: A value has the wrong type, or there is no such option.
        """
        for name, other, empty in (("initial_prompt", "prompt_ids", ()), ("prompt_ids", "initial_prompt", None)):
            value = overrides.get(name)
            if value is not None and (not hasattr(value, "__len__") or len(value)):  # without one it is refused below
                overrides.setdefault(other, empty)
        return dataclasses.replace(self, **overrides)

    @classmethod
    def from_checkpoint(cls, generation: Mapping[str, Any]) -> "SpeechOptions":
        """Return the defaults that a checkpoint's `generation_config.json` sets.

        `return_timestamps: false` there is no wish, as every checkpoint has it: it means None.

        Args:
            generation: The content of the file.

        Returns:
            `SpeechOptions`.
        """
        names = {f.name for f in dataclasses.fields(cls)} - {"initial_prompt", "prompt_ids", "temperature"}
        values = {name: value for name, value in generation.items() if name in names and value is not None}
        if not values.get("return_timestamps"):
            values.pop("return_timestamps", None)
        return cls(**values)


def _number(name: str, value: Any, low: float, high: float) -> float:
    number: Any = value  # as a `Real` it would have no comparison with floats
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"Received {name}={value!r} of type {type(value).__name__}; expected a float.")
    if not (low <= number <= high and math.isfinite(number)):
        raise ValueError(f"Received {name}={value}; expected a float from {low} to {high}.")
    return float(value)
