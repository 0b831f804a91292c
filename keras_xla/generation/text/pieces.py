"""Text as it is made: pieces that joined are the whole text."""

from collections.abc import Callable, Collection

import numpy as np

from keras_xla.generation.text.stop_strings import UNFINISHED, common


class TextPieces:
    """The text of one row, token after token.

    Args:
        decode: From all new tokens `(n,)` int32 to their text.
        byte_tokens: Those that are a byte each. A character of theirs waits for the token behind the last of them: one
            byte more may make all of them unreadable.
    """

    def __init__(self, decode: Callable[[np.ndarray], str], byte_tokens: Collection[int] = ()):
        self._decode, self._byte_tokens, self._shown = decode, byte_tokens, ""

    def add(self, tokens: np.ndarray, over: bool) -> str:
        """The next piece; empty while the newest bytes are no character.

        Args:
            tokens: All tokens so far, those of earlier calls among them.
            over: Whether there will be no others.
        """
        while not over and len(tokens) and int(tokens[-1]) in self._byte_tokens:
            tokens = tokens[:-1]
        text = self._decode(tokens)
        ready = text if over else text.rstrip(UNFINISHED)
        if not over and not ready.startswith(self._shown):  # a decoder that changes what it showed: wait
            return ""
        piece = ready[common(ready, self._shown) :]
        self._shown = ready
        return piece
