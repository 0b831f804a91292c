"""What the options of a transcription come to for a model: checked before anything runs."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_xla.config import GenerationOptions
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.tokens import SpeechTokens


@dataclass(frozen=True)
class TranscriptionPlan:
    """Options resolved for a model.

    Attributes:
        speech: As given.
        task: What to do; None for prompts without a task.
        languages: For each clip its code; None to detect it, or in a model of one language.
        timestamps: Whether to make timestamps.
        prompt: Token ids as if said before the clip, without `<|startofprev|>`.
        history: How many of the tokens made so far may stand before a prompt.
        attempts: How to decode, one after the other while the thresholds reject the outcome.
    """

    speech: SpeechOptions
    task: str | None
    languages: tuple[str | None, ...]
    timestamps: bool
    prompt: tuple[int, ...]
    history: int
    attempts: tuple[GenerationOptions, ...]

    @property
    def prompt_leads(self) -> bool:
        """Whether the prompt is the beginning of the history, rather than something before every window."""
        return self.history > 0 and self.speech.prompt_condition_type == "first-segment"


def make_plan(
    speech: SpeechOptions,
    options: GenerationOptions,
    tokens: SpeechTokens,
    positions: int,
    encode: Callable[[str], Sequence[int]],
    clips: int,
    timestamps: bool,
) -> TranscriptionPlan:
    """The plan for `clips` clips, all with `timestamps` or all without.

    Args:
        speech: What is asked for.
        options: How to decode; but `max_new_tokens` is that of `speech`, and the end is that of `tokens`.
        tokens: The special tokens of the model.
        positions: How many the decoder has.
        encode: From text to token ids.
        clips: How many.
        timestamps: Whether to make timestamps.

    Raises:
        ValueError: for what does not fit the model or each other.
    """
    if options.num_return_sequences > 1:
        raise ValueError(
            f"Received num_return_sequences={options.num_return_sequences}; speech has one transcript. Leave it out."
        )
    plan = TranscriptionPlan(
        speech=speech,
        task=task_of(speech, tokens),
        languages=languages_of(speech, tokens, clips),
        timestamps=timestamps,
        prompt=_prompt(speech, tokens, encode),
        # As in Whisper. Without timestamps there is one window, and no history that would need room.
        history=positions // 2 - 1 if speech.condition_on_prev_tokens and timestamps else 0,
        attempts=(),
    )
    tokens.check_task(plan.task)
    if (plan.prompt or speech.condition_on_prev_tokens) and tokens.previous is None:
        raise ValueError(
            "Received a prompt or condition_on_prev_tokens, but the checkpoint's generation_config.json has no "
            "prev_sot_token_id, which goes before them."
        )
    most, history = _sizes(plan, tokens, positions)
    options = options.replace(max_new_tokens=most, eos_token_id=(tokens.eos,))
    return dataclasses.replace(plan, history=history, attempts=attempts_of(speech, options))


def _sizes(plan: TranscriptionPlan, tokens: SpeechTokens, positions: int) -> tuple[int, int]:
    """`max_new_tokens`, and how much of the history fits beside it. Neither depends on what is said."""
    half, prompt = positions // 2 - 1, len(plan.prompt)
    if prompt > half:
        raise ValueError(
            f"Received a prompt of {prompt} tokens; the model has room for {half} before a transcription. Shorten it."
        )
    begin = len(tokens.prompt(tokens.any_language, plan.task, plan.timestamps))
    begin += 1 if prompt or plan.history else 0  # <|startofprev|>
    begin += 0 if plan.prompt_leads else prompt
    room = positions - begin
    least = max(prompt if plan.prompt_leads else 0, 1 if plan.history else 0)
    # A prompt before every window takes of the room for the history, and not of that for the transcript.
    told = plan.history if plan.prompt_leads else max(plan.history - prompt, least)
    most = plan.speech.max_new_tokens or room - told
    history = min(plan.history, room - most)
    if most < 1 or history < least:
        raise ValueError(
            f"Received max_new_tokens={most}, which with {begin + least} tokens before them is more than the model's "
            f"{positions} positions. Pass max_new_tokens={room - least} or less, or a shorter prompt."
        )
    return most, history


def _prompt(speech, tokens, encode) -> tuple[int, ...]:
    if not speech.initial_prompt:
        ids = speech.prompt_ids
        return ids[1:] if ids[:1] == (tokens.previous,) else ids
    ids = tuple(encode(" " + speech.initial_prompt.strip()))
    if special := [i for i in ids if i >= tokens.eos]:
        raise ValueError(
            f"Received initial_prompt={speech.initial_prompt!r}, which holds the special tokens {special}; expected "
            "plain text. Pass prompt_ids to set ids."
        )
    return ids


def _asks(speech: SpeechOptions) -> bool:
    """Whether a language or a task is given: the checkpoint's forced tokens, of both, then do not count."""
    return speech.language is not None or speech.task is not None


def task_of(speech: SpeechOptions, tokens: SpeechTokens) -> str | None:
    """What to do; by default what the checkpoint forces, if it forces anything."""
    return speech.task or ("transcribe" if _asks(speech) else tokens.task)


def languages_of(speech: SpeechOptions, tokens: SpeechTokens, clips: int) -> tuple[str | None, ...]:
    """For each clip the code of its language; None to detect it, or in a model of one language."""
    given = speech.language if isinstance(speech.language, tuple) else (speech.language,) * clips
    if len(given) != clips:
        raise ValueError(f"Received {len(given)} languages for {clips} clips; expected one, or one a clip.")
    forced = None if _asks(speech) else tokens.language
    codes = tuple(forced if language is None else tokens.language_code(language) for language in given)
    return codes if tokens.languages else (None,) * clips


def attempts_of(speech: SpeechOptions, options: GenerationOptions) -> tuple[GenerationOptions, ...]:
    """How to decode, one after the other; those that draw do so with the sampling options that are given.

    As in Hugging Face's, who draws has no beams.
    """
    if not speech.temperatures:
        return (options.replace(num_beams=1) if options.do_sample else options,)
    greedy = dataclasses.replace(options, do_sample=False)
    return tuple(
        options.replace(do_sample=True, temperature=t, num_beams=1) if t > 0 else greedy for t in speech.temperatures
    )
