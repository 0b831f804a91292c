"""A KerasHub task's tokenizer behind the few methods of a Hugging Face one that generation uses."""

from collections.abc import Sequence
from typing import Any


class TaskTokenizer:
    """The tokenizer of a KerasHub preprocessor.

    Text gets the start and end tokens that the preprocessor's own `generate_preprocess` gives it. KerasHub
    tokenizes in Python; only inside a TensorFlow graph does it need the package tensorflow-text.

    Args:
        preprocessor: The `preprocessor` of a `CausalLM` or a `Seq2SeqLM`.

    Example:
    ```python
    tokenizer = TaskTokenizer(task.preprocessor)
    tokenizer.decode(tokenizer("Once upon a time")["input_ids"], skip_special_tokens=True)
    ```
    """

    chat_template = None

    def __init__(self, preprocessor: Any):
        self.tokenizer = preprocessor.tokenizer
        packer, encoder = _packers(preprocessor)
        self._before = list(packer.start_value or ())
        self._after = list(packer.end_value or ()) if encoder else []  # a decoder's text goes on

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """The ids of one text, as `{"input_ids": [...]}`."""
        ids = [int(i) for i in self.tokenizer(text)]
        return {"input_ids": [*self._before, *ids, *self._after] if add_special_tokens else ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of `ids`."""
        special = set(self.tokenizer.special_token_ids) if skip_special_tokens else ()
        kept = [int(i) for i in ids if i not in special]
        return str(self.tokenizer.detokenize(kept)) if kept else ""

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


def tokenizer_of_task(task: Any) -> TaskTokenizer | None:
    """A task's tokenizer; None for a task without a preprocessor."""
    return None if task.preprocessor is None else TaskTokenizer(task.preprocessor)


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
