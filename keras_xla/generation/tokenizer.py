"""A tokenizer that is read when it is first needed: reading one takes seconds, and ids need none."""

import threading
from collections.abc import Callable
from typing import Any

from keras_xla.models.sources.keras_hub.tokenizer import HubTokenizer


class LazyTokenizer:
    """A tokenizer, read once, whichever thread needs it first.

    Args:
        read: Reads it. An error is raised again for whoever needs it next.

    Attributes:
        encoding: Held by the thread that makes ids of texts.
    """

    def __init__(self, read: Callable[[], Any]):
        self._read: Callable[[], Any] | None = read
        self._tokenizer: Any = None
        self._reading, self.encoding = threading.Lock(), threading.Lock()

    def get(self) -> Any:
        """The tokenizer.

        Raises:
            ValueError: its files cannot be read.
        """
        with self._reading:
            if self._read is not None:
                self._tokenizer = self._read()
                self._read = None
            return self._tokenizer

    def __deepcopy__(self, memo: dict) -> "LazyTokenizer":
        return self  # as it is, it serves any number of layers

    def __reduce__(self) -> tuple:
        return _read, (self.get(),)


def lazy(tokenizer: Any) -> LazyTokenizer | None:
    """A tokenizer that is there already, or one to be read, or None, as one that is read when needed.

    Raises:
        TypeError: It has not what texts need.
    """
    if tokenizer is None or isinstance(tokenizer, LazyTokenizer):
        return tokenizer
    return _read(as_hugging_face(tokenizer))


def _read(tokenizer: Any) -> LazyTokenizer:
    return LazyTokenizer(lambda: tokenizer)


def as_hugging_face(tokenizer: Any) -> Any:
    """A tokenizer with the methods of Hugging Face's: those of the packages tokenizers and KerasHub get them.

    Raises:
        TypeError: It has not what texts need.
    """
    if hasattr(tokenizer, "detokenize") and not hasattr(tokenizer, "decode") and callable(tokenizer):
        return HubTokenizer(tokenizer)
    if type(tokenizer).__module__.partition(".")[0] == "tokenizers" and hasattr(tokenizer, "encode_batch"):
        from transformers import PreTrainedTokenizerFast  # late: it takes seconds

        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if isinstance(tokenizer, type) or not callable(tokenizer) or not hasattr(tokenizer, "decode"):
        what = repr(tokenizer) if isinstance(tokenizer, str) else f"a {type(tokenizer).__name__}"
        raise TypeError(
            f"Received {what} as the tokenizer; expected one of transformers (AutoTokenizer.from_pretrained(...)), of "
            'the package tokenizers or of KerasHub, or an object that gives {"input_ids": [...]} when called with '
            "a text and add_special_tokens (bool), and that has decode(ids, skip_special_tokens) and get_vocab()."
        )
    return tokenizer
