"""Options of text, beside those of the generation: how prompts become ids, and ids text. Standard library only."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TextOptions:
    """How prompts become ids, and completions text; the names are those of Hugging Face's tokenizers.

    They are passed to `XLAGenerationLayer.generate` and its other methods by name, with text or chats only.

    Attributes:
        return_prompt: Whether completions begin with their prompt. A call without it does what the layer was made with.
            Not for encoder-decoders.
        add_special_tokens: Whether a string gets the tokens that a tokenizer adds, such as one for its beginning. A
            chat has them in its template.
        skip_special_tokens: Whether completions leave out special tokens.
        chat_template: A template in Jinja's language in place of the tokenizer's own, or the name of one of several
            that it has.
        tools: Functions with type hints and a docstring, or JSON schemas, that the template describes to the model.
        documents: What the template shows to the model for reference, such as dicts with `"title"` and `"text"`.
        add_generation_prompt: Whether a chat ends with the beginning of an answer. None means that it does, unless
            `continue_final_message` is True.
        continue_final_message: Whether the completion goes on with the last message, instead of answering it.
        enable_thinking: Whether the model thinks before it answers, for templates that know this. None leaves it to the
            template.
        chat_template_kwargs: Whatever else the template takes, by name.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: `add_generation_prompt` and `continue_final_message` are both True, or one of them is in
            `chat_template_kwargs`.
    """

    return_prompt: bool = False
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    chat_template: str | None = None
    tools: Sequence[Any] | None = None
    documents: Sequence[Mapping[str, str]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    enable_thinking: bool | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for name in ("return_prompt", "add_special_tokens", "skip_special_tokens", "continue_final_message"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"Received {name}={getattr(self, name)!r}; expected True or False.")
        for name in ("add_generation_prompt", "enable_thinking"):
            if not isinstance(getattr(self, name), bool | None):
                raise TypeError(f"Received {name}={getattr(self, name)!r}; expected True, False or None.")
        if not isinstance(self.chat_template_kwargs, Mapping):
            raise TypeError(f"Received chat_template_kwargs={self.chat_template_kwargs!r}; expected a dict.")
        for name in ("add_generation_prompt", "continue_final_message"):
            if name in self.chat_template_kwargs:
                raise ValueError(
                    f"Received {name} in chat_template_kwargs, where it would be ignored. Pass {name}=... itself."
                )
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError(
                "Received add_generation_prompt=True with continue_final_message=True; a chat either goes on with its "
                "last message or begins an answer. Pass one of them."
            )

    @property
    def template_arguments(self) -> dict[str, Any]:
        """The keyword arguments of `tokenizer.apply_chat_template` that these options are."""
        begins = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        arguments = dict(add_generation_prompt=begins, continue_final_message=self.continue_final_message)
        named = ("chat_template", "tools", "documents", "enable_thinking")
        arguments |= {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        return {**self.chat_template_kwargs, **arguments}


TEXT_FIELDS = tuple(f.name for f in dataclasses.fields(TextOptions))
_OF_CHATS = (
    "chat_template",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "enable_thinking",
    "chat_template_kwargs",
)


def check_chats(own: Mapping[str, Any], inputs: Any) -> None:
    """Raise a ValueError for options of a chat template where none of the `inputs` is a chat."""
    asked = [name for name in _OF_CHATS if own.get(name) not in (None, [], (), {}, getattr(TextOptions(), name))]
    if asked and not _has_chat(inputs):
        raise ValueError(
            f"Received {', '.join(asked)} with texts; expected that with a chat, for its template. Pass messages such "
            'as [{"role": "user", "content": text}], or leave it out.'
        )


def _has_chat(inputs: Any) -> bool:
    several = inputs.tolist() if hasattr(inputs, "tolist") else inputs  # columns of NumPy or pandas
    several = several if isinstance(several, (list, tuple)) else []
    firsts = (each[0] if isinstance(each, (list, tuple)) and each else each for each in several)
    return any(isinstance(first, Mapping) for first in firsts)


def split_text(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the text, and those of the generation."""
    own = {name: value for name, value in asked.items() if name in TEXT_FIELDS}
    return own, {name: value for name, value in asked.items() if name not in own}
