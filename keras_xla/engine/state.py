"""What goes into one generation and what comes out, as tensors of bucketed shape."""

from typing import Any, NamedTuple

import numpy as np

from keras_xla.config import GenerationOptions


class Request(NamedTuple):
    """Arguments of an executable. B, P, E: batch, prompt and eos buckets."""

    ids: Any  # [B, P] int32, left-padded
    starts: Any  # [B] int32, each row's first real slot; P marks a row that only fills the bucket
    eos: Any  # [E] int32, unused -1
    max_new_tokens: Any  # int32
    min_new_tokens: Any  # int32
    pad: Any  # int32
    seed: Any  # [2] uint32
    temperature: Any  # float32
    top_k: Any  # int32
    top_p: Any  # float32
    min_p: Any  # float32


class Result(NamedTuple):
    """What an executable returns. N: new-token bucket."""

    sequences: Any  # [B, N] int32, right-padded
    lengths: Any  # [B] int32
    scores: Any  # [B] float32


def make_request(rows: list[np.ndarray], batch: int, prompt: int, eos: int, options: GenerationOptions) -> Request:
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
        pad=np.int32(options.fill),
        seed=np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32),
        temperature=np.float32(options.temperature),
        top_k=np.int32(options.top_k),
        top_p=np.float32(options.top_p),
        min_p=np.float32(options.min_p),
    )
