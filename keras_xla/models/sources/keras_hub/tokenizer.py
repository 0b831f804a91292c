"""A KerasHub tokenizer behind the few methods of a Hugging Face one that generation uses."""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any


class HubTokenizer:
    """A KerasHub tokenizer, with the tokens that go around each text.

    KerasHub tokenizes in Python; only inside a TensorFlow graph does it need the package tensorflow-text.

    Args:
        tokenizer: One of KerasHub.
        before: Ids in front of each text.
        after: Ids behind it.

    Raises:
        ValueError: It pads or cuts each text to a length.

    Example:
    ```python
    tokenizer = HubTokenizer(keras_hub.tokenizers.ByteTokenizer())
    tokenizer.decode(tokenizer("Once upon a time")["input_ids"])
    ```
    """

    chat_template = None

    def __init__(self, tokenizer: Any, before: Sequence[int] = (), after: Sequence[int] = ()):
        if getattr(tokenizer, "sequence_length", None) is not None:
            raise ValueError(
                f"Received a {type(tokenizer).__name__} with sequence_length={tokenizer.sequence_length}; expected one "
                "that gives each text the tokens that it has. Make it without sequence_length."
            )
        self.tokenizer = tokenizer
        self._before, self._after = list(before), list(after)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """The ids of one text, as `{"input_ids": [...]}`."""
        ids = [int(i) for i in self.tokenizer(text)]
        return {"input_ids": [*self._before, *ids, *self._after] if add_special_tokens else ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of `ids`."""
        special = set(self.tokenizer.special_token_ids) if skip_special_tokens else ()
        kept = [int(i) for i in ids if (self._known is None or i in self._known) and i not in special]
        return str(self.tokenizer.detokenize(kept)) if kept else ""

    @functools.cached_property
    def _known(self) -> Collection[int] | None:
        """The ids that there are: a model may have room for more, of which KerasHub raises. None where nobody tells."""
        vocabulary = getattr(self.tokenizer, "vocabulary", None)
        if isinstance(vocabulary, Mapping):  # whose ids may have gaps
            return frozenset(vocabulary.values())
        try:
            size = self.tokenizer.vocabulary_size()
        except (AttributeError, NotImplementedError):
            return None
        return None if size is None else range(size)

    def get_vocab(self) -> dict[str, int]:
        """All tokens and their ids."""
        return {str(token): i for i, token in enumerate(self.tokenizer.get_vocabulary())}

    def save_pretrained(self, path: str) -> None:
        """Unsupported.

        Raises:
            ValueError: always, saying what to do.
        """
        raise ValueError(
            f"Received a layer with the KerasHub tokenizer {type(self.tokenizer).__name__}, which cannot be saved with "
            "it. Save the task (task.save_to_preset(...)) and make the layer of it again, or save the layer with "
            "layer.tokenizer = None."
        )


# Where the `generate` of these tasks stops, too.
_ENDS_OF_TURNS = {
    "Gemma3CausalLM": "<end_of_turn>",
    "Gemma3nCausalLM": "<end_of_turn>",
    "Phi3CausalLM": "<|end|>",
}


def tokenizer_of_task(task: Any) -> HubTokenizer | None:
    """A task's tokenizer, with the tokens that its `generate_preprocess` adds; None without a preprocessor."""
    if task.preprocessor is None:
        return None
    packer, encoder = _packers(task.preprocessor)
    after = packer.end_value or () if encoder else ()  # a decoder's text goes on
    return HubTokenizer(task.preprocessor.tokenizer, packer.start_value or (), after)


def options_of_task(task: Any) -> dict[str, Any]:
    """The generation options that KerasHub's own `generate` would use: where a text begins and ends."""
    preprocessor = task.preprocessor
    if preprocessor is None:
        return {}
    tokenizer, (_, encoder) = preprocessor.tokenizer, _packers(preprocessor)
    ends = [getattr(tokenizer, name, None) for name in ("end_token_id", "end_token2_id")]
    if turn := _ENDS_OF_TURNS.get(type(task).__name__):
        ends.append(tokenizer.token_to_id(turn) or None)  # 0 where a vocabulary has no such token
    options: dict[str, Any] = {"eos_token_id": [end for end in ends if end is not None]}
    pad = tokenizer.pad_token_id
    # KerasHub pads with 0 where there is no such token, and that may be a piece of text.
    if pad in tokenizer.special_token_ids or (pad is not None and tokenizer.id_to_token(pad) in ("<pad>", "<unk>")):
        options["pad_token_id"] = pad
    if encoder:  # BART's decoder begins with two tokens
        first = preprocessor.decoder_packer.start_value
        options |= dict(zip(("decoder_start_token_id", "forced_bos_token_id"), first, strict=False))
    return options


def _packers(preprocessor: Any) -> tuple[Any, bool]:
    """What puts start and end around a prompt, and whether that is an encoder's."""
    if not preprocessor.built:
        preprocessor.build(None)
    encoder = getattr(preprocessor, "encoder_packer", None)
    return (preprocessor.packer, False) if encoder is None else (encoder, True)
