"""What a generation cannot run is refused here, before anything compiles."""

import math
from typing import Any

import numpy as np

from keras_xla.config import CONSTRAINTS, GenerationOptions
from keras_xla.engine.padding import Rows

_LARGEST_SCORE = 70.0  # its natural logarithm, but for that of a log-probability; float32 holds 88


def check(model: Any, prompts: Rows, options: GenerationOptions, source: Rows | None = None) -> None:
    """Raise for prompts, sources (token ids) or options that `model` cannot run.

    Raises:
        ValueError: for no rows, an empty row, an id outside of the vocabulary, too many tokens, or options that name
            tokens outside of the vocabulary or more beams than there are tokens.
    """
    check_options(model, options)
    if not (prompts if source is None else source):
        raise ValueError("Received no prompts; expected at least one.")
    check_lists(options, len(prompts))
    for i, row in enumerate(source or ()):
        _check_ids("Prompt", i, row, getattr(model, "source_vocab_size", model.vocab_size))
        if model.max_source is not None and len(row) > model.max_source:
            raise ValueError(
                f"Prompt {i} has {len(row)} tokens; the model's encoder has {model.max_source} positions. Shorten it."
            )
    _check_prompts("Prompt" if source is None else "Decoder prompt", model, prompts, options)


def check_lists(options: GenerationOptions, prompts: int) -> None:
    """Raise for options with values for another number of prompts."""
    for name, count in options.per_row.items():
        if count != prompts:
            raise ValueError(
                f"Received {name} with {count} values for {prompts} prompts; expected one value, or one for each."
            )


def check_options(model: Any, options: GenerationOptions) -> None:
    """Raise for options that name tokens outside of the vocabulary, contradict each other, or want too many beams."""
    vocab = model.vocab_size
    named = {name: getattr(options, name) for name in _TOKEN_OPTIONS}
    named["pad_token_id"] = options.fill
    named["bad_words_ids"] = [token for word in options.bad_words_ids for token in word]
    named["sequence_bias"] = [token for sequence, _ in options.sequence_bias for token in sequence]
    named = {name: [ids] if isinstance(ids, int) else list(ids or ()) for name, ids in named.items()}
    for name, ids in named.items():
        if outside := [i for i in ids if i >= vocab]:
            raise ValueError(f"Received {name} with {outside}; expected ids below the vocabulary's {vocab}.")
    if options.num_beams > 1 and options.num_beams * 2 > vocab:
        raise ValueError(
            f"Received num_beams={options.num_beams}; expected at most half of the vocabulary's {vocab} tokens."
        )
    new, penalty = options.most_new_tokens, options.length_penalty
    if options.num_beams > 1 and -penalty * math.log(new) > _LARGEST_SCORE:
        raise ValueError(
            f"Received length_penalty={penalty} with max_new_tokens={new}, with which the scores of beams are more "
            f"than float32 holds; expected at least {-_LARGEST_SCORE / math.log(new):.1f}."
        )
    if len(set(options.suppress_tokens)) >= vocab:  # all of them are in the vocabulary
        raise ValueError("Received suppress_tokens with the whole vocabulary; expected some token to be left.")
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        forced = named[name]
        if forced and set(forced) <= set(options.suppress_tokens):
            raise ValueError(
                f"Received {name} with {forced}, and suppress_tokens with the same; expected a token that may come. "
                "Leave it out of one of them."
            )


def check_speech(options: GenerationOptions) -> None:
    """Raise for options about tokens that an encoder reads, and for guesses."""
    if options.prompt_lookup_num_tokens:
        raise ValueError(
            f"Received prompt_lookup_num_tokens={options.prompt_lookup_num_tokens} with speech, where it has no "
            "meaning. Leave it out."
        )
    if options.guided:
        raise ValueError(f"Received guidance_scale={options.guidance_scale} with speech. Leave it out.")
    if options.encoder_repetition_penalty != 1 or options.encoder_no_repeat_ngram_size:
        raise ValueError(
            "Received encoder_repetition_penalty or encoder_no_repeat_ngram_size with speech, which has no tokens. "
            "Leave them out."
        )


def check_assisted(generator: Any, assistant: Any, options: GenerationOptions) -> None:
    """Raise where the generator of a smaller model cannot guess for another generator.

    Raises:
        ValueError: for models that are not decoders of keras_xla's, and options that do not go with guesses.
    """
    for each, who in ((generator, "the layer's model"), (assistant, "the assistant")):
        if not each.keeps_prompts:
            raise ValueError(
                f"Received an assistant, and {who} is {each.kind}; expected two decoder-only models of keras_xla's."
            )
    asked = [name for name in CONSTRAINTS if getattr(options, name) is not None]
    asked += ["num_beams"] if options.num_beams > 1 else []
    asked += ["prompt_lookup_num_tokens"] if options.prompt_lookup_num_tokens else []
    if asked:
        raise ValueError(f"Received an assistant with {asked[0]}, for which it cannot guess. Leave one of them out.")


def decoder_prompts(rows: Rows, options: GenerationOptions, prompts: Rows | None) -> Rows:
    """What an encoder-decoder's completions begin with: the prompts for it, or its start token.

    Raises:
        ValueError: for another number of prompts than rows, and without a start token.
    """
    if prompts is not None:
        if len(rows) and len(prompts) != len(rows):
            raise ValueError(
                f"Received {len(prompts)} rows of decoder_input_ids with {len(rows)} of input_ids; expected one for "
                "each."
            )
        return prompts
    start = options.decoder_start_token_id
    if start is None:
        raise ValueError(
            "Received no decoder_start_token_id, which an encoder-decoder's completions begin with. Pass it; the "
            "model's config.json or generation_config.json names it."
        )
    return [np.array([start], np.int32)] * len(rows)


def check_negative(model: Any, negative: Rows, options: GenerationOptions) -> None:
    """Raise for negative prompts that `model` cannot run, as `check` does for prompts."""
    _check_prompts("Negative prompt", model, negative, options)


def _check_prompts(kind: str, model: Any, prompts: Rows, options: GenerationOptions) -> None:
    most = options.max_new_tokens
    for i, row in enumerate(prompts):
        _check_ids(kind, i, row, model.vocab_size)
        _check_room(f"{kind} {i}", len(row), model.max_positions, most[i] if isinstance(most, tuple) else most)


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
