"""Rows of ids as arrays of few shapes: padded, and in chunks."""

from collections.abc import Iterator, Sequence

import numpy as np

from keras_xla import backend
from keras_xla.engine.buckets import WHOLE_PROMPTS

# B batch, L length of the longest row, M length of what an encoder reads

Rows = Sequence[np.ndarray]  # of ids, each `(length,)` int32
CHUNK_PART, LEAST_CHUNK = 8, 32  # of a cache, and in tokens
# A CPU computes no faster with more at once. A GPU does, until it no longer waits for weights.
MOST_ON_CPU, MOST_ELSEWHERE = 256, 512


def pad_left(rows: Sequence[np.ndarray], batch: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows `[B, L]` int32 that end together, L the longest, and the slot at which each begins `[B]` int32."""
    length = max(map(len, rows))
    ids, starts = np.full((batch, length), pad, np.int32), np.full((batch,), length, np.int32)
    for i, row in enumerate(rows):
        ids[i, length - len(row) :] = row
        starts[i] = length - len(row)
    return ids, starts


def pad_source(rows: Sequence[np.ndarray], batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """An encoder's `rows`, right-padded: ids `[B, M]` int32 and mask `[B, M]` bool."""
    ids, mask = np.zeros((batch, length), np.int32), np.zeros((batch, length), bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, True
    mask[len(rows) :, 0] = True  # rows that only fill the bucket: attention needs something to see
    return ids, mask


def chunk_size(cache: int) -> int:
    """Tokens of a prompt that run at once over a cache of so many slots."""
    most = MOST_ON_CPU if backend.on_cpu() else MOST_ELSEWHERE
    return min(cache, most, max(LEAST_CHUNK, cache // CHUNK_PART))


def chunks(ids: np.ndarray, size: int, cache: int, first: int = 0) -> Iterator[tuple[np.ndarray, np.int32]]:
    """Prompts `ids [B, L]` from the slot `first` on, in parts `[B, size]` int32, each with the slot it begins at."""
    for begin in range(first, ids.shape[1], size):
        slot = min(begin, cache - size)  # all of it has to fit: some tokens then run twice
        chunk = ids[:, slot : slot + size]
        yield np.pad(chunk, ((0, 0), (0, size - chunk.shape[1]))), np.int32(slot)


def pad_more(ids: np.ndarray, starts: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """`ids [B, L]`, padded on the left to its bucket; and where rows begin then."""
    missing = WHOLE_PROMPTS.fit(ids.shape[1]) - ids.shape[1]
    return np.pad(ids, ((0, 0), (missing, 0)), constant_values=pad), starts + missing
