"""The special tokens of a speech model: where they are, and the prompts made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_xla.private.triton import refuse_triton
from keras_xla.troubleshooting import warn

TASKS = ("transcribe", "translate")


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of Whisper's special tokens. Text is below `eos`; timestamps are from `first_timestamp` on.

    Attributes:
        start: `<|startoftranscript|>`.
        eos: `<|endoftext|>`.
        no_timestamps: `<|notimestamps|>`.
        previous: `<|startofprev|>`, before what was said earlier; None if unknown.
        languages: `{"en": id, ...}`; empty for a model of one language.
        tasks: `{"transcribe": id, "translate": id}`; empty for a model of one language.
        language: What is spoken unless told otherwise; None to detect it.
        task: What to do unless told otherwise; None where a checkpoint says nothing: its prompts have no task then.
        fixed: What follows `start` in a model of one language.
        max_initial_timestamp_index: How late, in steps of 20 ms, the first timestamp may be; None for no limit.
    """

    start: int
    eos: int
    no_timestamps: int
    previous: int | None = None
    languages: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    language: str | None = None
    task: str | None = None
    fixed: tuple[int, ...] = ()
    max_initial_timestamp_index: int | None = None

    @classmethod
    def from_checkpoint(cls, generation: Mapping[str, Any]) -> "SpeechTokens":
        """From what a checkpoint says about generation, see `stored_options`.

        Raises:
            ValueError: without `decoder_start_token_id`, `eos_token_id` or `no_timestamps_token_id`.
        """
        needed = ("decoder_start_token_id", "eos_token_id", "no_timestamps_token_id")
        if missing := [name for name in needed if generation.get(name) is None]:
            raise ValueError(
                f"The checkpoint's generation_config.json lacks {', '.join(missing)}, without which speech cannot be "
                "transcribed. Take it from the original checkpoint, such as openai/whisper-tiny."
            )
        start, eos, no_timestamps = (generation[name] for name in needed)
        multilingual = generation.get("is_multilingual") is not False
        languages = {_bare(name): i for name, i in (generation.get("lang_to_id") or {}).items() if multilingual}
        tasks = dict(generation.get("task_to_id") or {}) if languages else {}
        # Where one of these is set, Hugging Face ignores the ids.
        named = generation.get("language") is not None or generation.get("task") is not None
        forced = [] if named else _forced(generation.get("forced_decoder_ids") or [])
        suppressed: Sequence[int] = generation.get("suppress_tokens") or ()
        previous = generation.get("prev_sot_token_id")
        if previous is None and len(suppressed) > 1:  # older checkpoints end the list with it and <|nospeech|>
            previous = suppressed[-2]
        if languages and not _is_language_and_task(forced, languages, tasks, no_timestamps):
            warn(
                f"The checkpoint's forced_decoder_ids begin a transcript with the tokens {forced}, which are not one "
                "of its languages, or that and a task. keras_xla begins with a language and a task: completions will "
                "differ from Hugging Face's. Pass language=... and task=..."
            )
        return cls(
            start=start,
            eos=eos[0] if isinstance(eos, (list, tuple)) else eos,
            no_timestamps=no_timestamps,
            previous=previous,
            languages=languages,
            tasks=tasks,
            language=next((name for name, i in languages.items() if i in forced), None),
            task=next((name for name, i in tasks.items() if i in forced), None),
            fixed=() if languages else tuple(t for t in forced if t is not None and t != no_timestamps),
            max_initial_timestamp_index=generation.get("max_initial_timestamp_index"),
        )

    @property
    def first_timestamp(self) -> int:
        """`<|0.00|>`."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """`<|nospeech|>`."""
        return self.no_timestamps - 1

    def language_code(self, language: str) -> str:
        """The code of a language given as `"de"`, `"German"` or `"<|de|>"`.

        Raises:
            TypeError: if it is no string.
            ValueError: for a language that the model does not know, and any but English for an English-only model.
        """
        if not isinstance(language, str):
            raise TypeError(f"Received language={language!r} of type {type(language).__name__}; expected a string.")
        code = _bare(language).lower()
        if code not in self.languages:
            refuse_triton()
            from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE  # late: it takes a second

            code = TO_LANGUAGE_CODE.get(code, code)
        self._refuse_forced(f"language={language!r}")
        known = self.languages or ("en",)
        if code in known:
            return code
        if not self.languages:
            raise ValueError(f"Received language={language!r}, but this model knows English only. Leave it out.")
        raise ValueError(f"Received language={language!r}; this model knows {', '.join(sorted(known))}.")

    def check_task(self, task: str | None) -> None:
        """Raise a `ValueError` for a task that the model does not have."""
        if task is None:
            return
        if task not in TASKS:
            raise ValueError(f"Received task={task!r}; expected one of {', '.join(TASKS)}.")
        self._refuse_forced(f"task={task!r}")
        if task != "transcribe" and task not in self.tasks:
            raise ValueError(f"Received task={task!r}, but this model can only transcribe. Use a multilingual one.")

    def _refuse_forced(self, asked: str) -> None:
        """Raise for what is asked for of a checkpoint that forces a language and does not say which others it has."""
        if self.fixed:
            raise ValueError(
                f"Received {asked}, but the checkpoint's generation_config.json has no lang_to_id and task_to_id: "
                f"all that is known is that transcripts begin with the tokens {list(self.fixed)}. Leave it out, or "
                "pass generation_config=... with both, as in openai/whisper-tiny."
            )

    @property
    def any_language(self) -> str | None:
        """One that the model knows, for prompts of which only the length counts; None for a model of one language."""
        return next(iter(self.languages), None)

    def prompt(self, language: str | None, task: str | None, timestamps: bool) -> list[int]:
        """What a transcription begins with, from `start` on; `language` a code, None for a model of one language."""
        ids = [self.start, *self.fixed]
        if self.languages:
            code: Any = language  # not None, as there are several
            ids += [self.languages[code]] + ([] if task is None or task not in self.tasks else [self.tasks[task]])
        return ids if timestamps else [*ids, self.no_timestamps]


def _forced(ids: Sequence[Sequence[int | None]]) -> list[int | None]:
    """The tokens of `(position, token)` pairs; as in Hugging Face's, a list that does not begin with 1 says nothing."""
    return [token for _, token in ids] if ids and ids[0][0] == 1 else []


def _is_language_and_task(
    forced: list, languages: Mapping[str, int], tasks: Mapping[str, int], no_timestamps: int
) -> bool:
    """Whether forced tokens are what `SpeechTokens.prompt` can make."""
    language, *rest = forced or [None]
    rest = [token for token in rest if token is not None]
    task = rest[:-1] if rest[-1:] == [no_timestamps] else rest
    known = language is None or language in languages.values()
    return known and (not task or (len(task) == 1 and task[0] in tasks.values()))


def _bare(name: str) -> str:
    return name.removeprefix("<|").removesuffix("|>")
