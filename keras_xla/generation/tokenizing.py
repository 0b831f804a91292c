"""Text to rows of ids and back, with a Hugging Face tokenizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def encode(tokenizer: Any, prompts: Sequence[str | list]) -> list[np.ndarray]:
    """Ids of each prompt; a chat goes through the tokenizer's chat template.

    Raises:
        ValueError: without a tokenizer, or for a chat without a chat template.
    """
    if tokenizer is None:
        raise ValueError(
            "Received text, but the layer has no tokenizer. Pass tokenizer=..., or token ids of shape (batch, length)."
        )
    return [np.asarray(_ids(tokenizer, prompt), np.int32) for prompt in prompts]


def decode(tokenizer: Any, prompt: np.ndarray, new: np.ndarray, return_prompt: bool) -> str:
    """The text of a completion, or of prompt and completion.

    The completion is what it adds to the prompt's text: decoded alone, a tokenizer that keeps spaces
    in front of words would lose the first one.
    """

    def text(ids):
        return tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    whole, head = text(np.concatenate([prompt, new])), text(prompt)
    if return_prompt:
        return whole
    return whole[len(head) :] if whole.startswith(head) else text(new)


def _ids(tokenizer, prompt):
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "Received a chat (a list of messages), but the tokenizer has no chat template. Pass a string, or set "
            "tokenizer.chat_template."
        )
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]
