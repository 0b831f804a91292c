"""Texts that end a completion, found token after token."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

UNFINISHED = "\ufffd"  # what a decoder shows for bytes that are no character yet
_BYTES = 4  # that a character has at most: as many tokens may show nothing


def common(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    return next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))


def with_readable_bytes(text: str, ids: Sequence[int], byte_tokens: Mapping[int, int]) -> str:
    """A decoded text in which bytes that are characters stand as those, whatever stands around them.

    Decoders show a row of tokens of one byte as U+FFFD, each of them, where all together are no UTF-8.

    Args:
        text: What a decoder made of the ids.
        ids: Token ids.
        byte_tokens: The bytes of tokens that are one each.
    """
    at = 0
    for is_byte, row in itertools.groupby(ids, byte_tokens.__contains__):
        if not is_byte or UNFINISHED not in text:
            continue
        found = bytes(byte_tokens[token] for token in row)
        shown, unreadable = found.decode(errors="replace"), UNFINISHED * len(found)
        if UNFINISHED in shown and (place := text.find(unreadable, at)) >= 0:
            text, at = text[:place] + shown + text[place + len(unreadable) :], place + len(shown)
    return text


class StopStrings:
    """Where a stop string ends one row: behind the token that completes it, as in Hugging Face's `generate`.

    A stop string may begin in the prompt, and special tokens count by their names.

    Args:
        decode: From token ids `(n,)` to their text, special tokens included.
        strings: The stop strings; there may be none.
        prompt: `(n,)` int32, the ids before the new tokens.
        byte_tokens: The bytes of tokens that are one each.
    """

    def __init__(
        self,
        decode: Callable[[np.ndarray], str],
        strings: Sequence[str],
        prompt: np.ndarray,
        byte_tokens: Mapping[int, int] | None = None,
    ):
        self._decode, self._strings, self._byte_tokens = decode, tuple(strings), byte_tokens or {}
        # Tokens among which a stop string that ends in the newest has to stand.
        self._window = _BYTES * (max(map(len, self._strings), default=0) + 1)
        self._before = prompt[-self._window :]
        self._seen = 0
        self._found: int | None = None

    def find(self, tokens: np.ndarray) -> int | None:
        """After how many of its new tokens `(n,)` int32, those of earlier calls among them, the row ends."""
        if self._strings and self._found is None and len(tokens) > self._seen:
            ids = np.concatenate([self._before, tokens])
            for count in range(self._seen + 1, len(tokens) + 1):
                if self._completed_by_the_last(ids[: len(self._before) + count]):
                    self._found = count
                    break
            self._seen = len(tokens)
        return self._found

    def _completed_by_the_last(self, ids: np.ndarray) -> bool:
        ids = ids[-self._window :]
        text, before = self._text(ids), self._text(ids[:-1]).rstrip(UNFINISHED)
        known = common(text, before)
        return any(text.find(stop, max(0, known - len(stop) + 1)) >= 0 for stop in self._strings)

    def _text(self, ids: np.ndarray) -> str:
        return with_readable_bytes(self._decode(ids), ids.tolist(), self._byte_tokens)
