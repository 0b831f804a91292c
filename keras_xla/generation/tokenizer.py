"""A tokenizer that is read when it is first needed: reading one takes seconds, and ids need none."""

import threading
from collections.abc import Callable
from typing import Any


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
        return lazy, (self.get(),)


def lazy(tokenizer: Any) -> LazyTokenizer | None:
    """A tokenizer that is there already, or one to be read, or None, as one that is read when needed."""
    if tokenizer is None or isinstance(tokenizer, LazyTokenizer):
        return tokenizer
    return LazyTokenizer(lambda: tokenizer)
