"""Text to rows of ids and back, with a Hugging Face tokenizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_xla.generation.text.options import TextOptions
from keras_xla.generation.tokenizer import LazyTokenizer

DEFAULTS = TextOptions()


def encode(
    tokenizer: LazyTokenizer | None, prompts: Sequence[str | list], text: TextOptions = DEFAULTS, target: bool = False
) -> list[np.ndarray]:
    """Ids of each prompt; a chat goes through the tokenizer's chat template.

    As a `target`, a text is what an encoder-decoder writes: translators have other tokens for it than for what is read.

    Raises:
        ValueError: without a tokenizer, for a chat without a chat template or one that its template refuses, and for a
            string that is no Unicode text.
    """
    if tokenizer is None:
        raise ValueError(
            "Received text, but the layer has no tokenizer. Pass tokenizer=..., or token ids of shape (batch, length)."
        )
    read = tokenizer.get()
    with tokenizer.encoding:  # a translator's switches to the words of the target and back, for all threads
        return [np.asarray(_ids(read, i, prompt, text, target), np.int32) for i, prompt in enumerate(prompts)]


def behind(
    tokenizer: LazyTokenizer, prompts: Sequence[str | list], rows: Sequence[np.ndarray], answers: Sequence[str], text
) -> list[np.ndarray | None]:
    """Ids of each answer as they stand behind the ids of its prompt (`rows`), if both are one text.

    Alone, an answer may have other ones: tokenizers of SentencePiece put a space in front. None where the tokens of the
    whole do not begin with those of the prompt, as a word may go over its end.
    """
    read, made = tokenizer.get(), []
    with tokenizer.encoding:
        for i, (prompt, row, answer) in enumerate(zip(prompts, rows, answers, strict=True)):
            whole = np.asarray(_ids(read, i, prompt, text, target=False, answer=answer), np.int32)
            begins = len(whole) > len(row) and np.array_equal(whole[: len(row)], row)
            made.append(whole[len(row) :] if begins else None)
    return made


def decoder(tokenizer: Any, prompt: np.ndarray, text: TextOptions = DEFAULTS) -> Callable[[np.ndarray], str]:
    """From the ids of a completion to its text, or to that of prompt and completion.

    The completion is what it adds to the prompt's text: decoded alone, a tokenizer that keeps spaces
    in front of words would lose the first one.
    """
    skip = text.skip_special_tokens
    head = plain(tokenizer, prompt, skip)

    def decode(new: np.ndarray) -> str:
        whole = plain(tokenizer, np.concatenate([prompt, new]), skip)
        if text.return_prompt:
            return whole
        return whole[len(head) :] if whole.startswith(head) else plain(tokenizer, new, skip)

    return decode


def byte_tokens(tokenizer: Any) -> dict[int, int]:
    """The bytes of tokens that are one each, `<0x00>` to `<0xFF>`, by id; none where there are no such tokens."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if hasattr(tokenizer, "convert_tokens_to_ids"):
        ids = tokenizer.convert_tokens_to_ids(names)
    else:  # that of a KerasHub task
        ids = map(tokenizer.get_vocab().get, names)
    none = (None, getattr(tokenizer, "unk_token_id", None))
    return {token: byte for byte, token in enumerate(ids) if token not in none}


def plain(tokenizer: Any, ids: np.ndarray, skip_special_tokens: bool) -> str:
    """The text of token ids `(n,)`, as it is."""
    return tokenizer.decode(ids.tolist(), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)


def _ids(tokenizer, i: int, prompt, text: TextOptions, target: bool, answer: str = ""):
    if not isinstance(prompt, str):
        prompt, special = _chat(tokenizer, i, prompt, text), False  # its template has written them
    else:
        special = text.add_special_tokens
    prompt += answer
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"Prompt {i} is no Unicode text: {error}. Decode it with errors='replace'.") from None
    how = {} if special else {"add_special_tokens": False}
    if hasattr(tokenizer, "model_max_length"):
        how["verbose"] = False  # transformers would warn of a length, whose limit we know better
        if target:
            return tokenizer(text_target=prompt, **how)["input_ids"]
    return tokenizer(prompt, **how)["input_ids"]


def _chat(tokenizer, i: int, messages, text: TextOptions) -> str:
    arguments = text.template_arguments
    if getattr(tokenizer, "chat_template", None) is None and "chat_template" not in arguments:
        raise ValueError(
            "Received a chat (a list of messages), but the tokenizer has no chat template. Pass a string, "
            "chat_template=..., or set tokenizer.chat_template."
        )
    named, known = arguments.get("chat_template"), getattr(tokenizer, "chat_template", None)
    names = list(known) if isinstance(known, Mapping) else []
    if isinstance(named, str) and "{" not in named and named not in names:
        raise ValueError(
            f"Received chat_template={named!r}, which is neither a template of Jinja nor the name of one of the "
            f"tokenizer's. Its names: {', '.join(names) or 'none'}."
        )
    from jinja2.exceptions import TemplateError  # late: only a chat needs it

    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    except (TemplateError, TypeError, KeyError, AttributeError) as error:
        parts = any(isinstance(message.get("content"), list) for message in messages)
        raise ValueError(
            f"The tokenizer's chat template refused chat {i}: {type(error).__name__}: {error}. It received the roles "
            f"{[message['role'] for message in messages]}{', with content in parts' if parts else ''}. Change them as "
            f"the reason says{', and pass strings to a model that reads text alone' if parts else ''}."
        ) from error
