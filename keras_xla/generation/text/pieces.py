"""Text as it is made: pieces that joined are the whole text."""

from collections.abc import Callable

import numpy as np

from keras_xla.generation.text.stop_strings import UNFINISHED, common


class TextPieces:
    """The text of one row, token after token.

    Args:
        decode: From all new tokens `(n,)` int32 to their text.
    """

    def __init__(self, decode: Callable[[np.ndarray], str]):
        self._decode, self._shown = decode, ""

    def add(self, tokens: np.ndarray, over: bool) -> str:
        """The next piece; empty while the newest bytes are no character.

        Args:
            tokens: All tokens so far, those of earlier calls among them.
            over: Whether there will be no others.
        """
        text = self._decode(tokens)
        ready = text if over else text.rstrip(UNFINISHED)
        if not over and not ready.startswith(self._shown):  # a decoder that changes what it showed: wait
            return ""
        piece = ready[common(ready, self._shown) :]
        self._shown = ready
        return piece
