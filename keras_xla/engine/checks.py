"""What a generation cannot run is refused here, before anything compiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions

Rows = Sequence[np.ndarray]


def check(model: Any, prompts: Rows, options: GenerationOptions, source: Rows | None = None) -> None:
    """Raise for prompts, sources (token ids) or options that `model` cannot run.

    Raises:
        ValueError: for no rows, an empty row, an id outside of the vocabulary, too many tokens, or options that name
            tokens outside of the vocabulary or more beams than there are tokens.
    """
    check_options(model, options)
    if not (prompts if source is None else source):
        raise ValueError("Received no prompts; expected at least one.")
    for i, row in enumerate(source or ()):
        _check_ids("Prompt", i, row, model.vocab_size)
        if model.max_source is not None and len(row) > model.max_source:
            raise ValueError(
                f"Prompt {i} has {len(row)} tokens; the model's encoder has {model.max_source} positions. Shorten it."
            )
    kind = "Prompt" if source is None else "Decoder prompt"
    for i, row in enumerate(prompts):
        _check_ids(kind, i, row, model.vocab_size)
        _check_room(f"{kind} {i}", len(row), model.max_positions, options.max_new_tokens)


def check_options(model: Any, options: GenerationOptions) -> None:
    """Raise for options that name tokens outside of the vocabulary, or more beams than there are tokens."""
    vocab = model.vocab_size
    named = {name: getattr(options, name) for name in _TOKEN_OPTIONS}
    named["pad_token_id"] = options.fill
    named["bad_words_ids"] = [token for word in options.bad_words_ids for token in word]
    for name, ids in named.items():
        ids = [ids] if isinstance(ids, int) else ids or []
        if outside := [i for i in ids if i >= vocab]:
            raise ValueError(f"Received {name} {outside}; expected ids below the vocabulary's {vocab}.")
    if options.num_beams > 1 and options.num_beams * 2 > vocab:
        raise ValueError(
            f"Received num_beams={options.num_beams}; expected at most half of the vocabulary's {vocab} tokens."
        )
    if set(range(vocab)) <= set(options.suppress_tokens):
        raise ValueError("Received suppress_tokens with the whole vocabulary; expected some token to be left.")


def _check_ids(kind: str, i: int, row: np.ndarray, vocab: int) -> None:
    if len(row) == 0:
        raise ValueError(f"{kind} {i} is empty; expected at least one token.")
    if row.min() < 0 or row.max() >= vocab:
        bad = row[(row < 0) | (row >= vocab)][0]
        raise ValueError(
            f"{kind} {i} holds the token id {bad}; expected ids from 0 to {vocab - 1}. "
            "Is the tokenizer that of this model?"
        )


def _check_room(name: str, length: int, room: int | None, new_tokens: int) -> None:
    if room is None:
        return
    if length >= room:
        raise ValueError(
            f"{name} has {length} tokens; the model has {room} positions, for prompt and new tokens together. "
            "Shorten the prompt."
        )
    if length + new_tokens > room:
        raise ValueError(
            f"{name} has {length} tokens, which with max_new_tokens={new_tokens} is more than the model's {room} "
            f"positions. Pass max_new_tokens={room - length} or less, or shorten the prompt."
        )


_TOKEN_OPTIONS = (
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "decoder_start_token_id",
)
