"""What goes into one generation and what comes out, as tensors of bucketed shape."""

from typing import Any, NamedTuple

import numpy as np

from keras_xla.config import GenerationOptions


class Request(NamedTuple):
    """Arguments of an executable. B, P, E, M: batch, prompt, eos and source buckets."""

    ids: Any  # [B, P] int32, left-padded
    starts: Any  # [B] int32, each row's first real slot; P marks a row that only fills the bucket
    eos: Any  # [E] int32, unused -1
    max_new_tokens: Any  # int32
    min_new_tokens: Any  # int32
    min_length: Any  # int32
    pad: Any  # int32
    seed: Any  # [2] uint32
    temperature: Any  # float32
    top_k: Any  # int32
    top_p: Any  # float32
    min_p: Any  # float32
    length_penalty: Any  # float32
    early_stopping: Any  # int32: 0 False, 1 True, 2 "never"
    source: dict  # an encoder-decoder's: {"ids" [B, M] int32, "mask" [B, M] bool}, or {"hidden" [B, M, E]}
    extras: dict  # the processors' tensors, by name


class Result(NamedTuple):
    """What an executable returns. K lanes (beams), N new-token bucket."""

    sequences: Any  # [B, K, N] int32, right-padded, best first
    lengths: Any  # [B, K] int32
    scores: Any  # [B, K] float32


def make_request(
    rows: list[np.ndarray],
    batch: int,
    prompt: int,
    eos: int,
    options: GenerationOptions,
    source: dict[str, Any],
    extras: dict[str, np.ndarray],
) -> Request:
    """Left-pad `rows` (1-D int32 arrays) into a `(batch, prompt)` bucket, and turn the options into tensors."""
    ids = np.full((batch, prompt), options.fill, np.int32)
    starts = np.full((batch,), prompt, np.int32)
    for i, row in enumerate(rows):
        ids[i, prompt - len(row) :] = row
        starts[i] = prompt - len(row)
    ends = np.full((eos,), -1, np.int32)
    ends[: len(options.eos_token_id)] = options.eos_token_id
    seed = np.random.randint(2**31) if options.seed is None else options.seed
    return Request(
        ids=ids,
        starts=starts,
        eos=ends,
        max_new_tokens=np.int32(options.max_new_tokens),
        min_new_tokens=np.int32(options.min_new_tokens),
        min_length=np.int32(options.min_length),
        pad=np.int32(options.fill),
        seed=np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32),
        temperature=np.float32(options.temperature),
        top_k=np.int32(options.top_k),
        top_p=np.float32(options.top_p),
        min_p=np.float32(options.min_p),
        length_penalty=np.float32(options.length_penalty),
        early_stopping=np.int32(2 if options.early_stopping == "never" else options.early_stopping),
        source=source,
        extras=extras,
    )


def pad_source(rows: list[np.ndarray], batch: int, length: int) -> dict[str, np.ndarray]:
    """Right-pad an encoder's `rows` into a `(batch, length)` bucket, with the mask."""
    ids = np.zeros((batch, length), np.int32)
    mask = np.zeros((batch, length), bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, True
    mask[len(rows) :, 0] = True  # rows that only fill the bucket: attention needs something to see
    return {"ids": ids, "mask": mask}
