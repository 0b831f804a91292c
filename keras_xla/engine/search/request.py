"""What is asked of one generation, as tensors of bucketed shape: no value among them compiles anything."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.search.processors import Processor

# B batch, E room for end-of-sequence ids

_INTEGERS = (
    "prompt_end",
    "max_new_tokens",
    "min_new_tokens",
    "min_length",
    "pad",
    "top_k",
    "early_stopping",
    "first_row",
)
_FLOATS = ("temperature", "top_p", "min_p", "length_penalty")


class Request(NamedTuple):
    """Arguments of an executable."""

    starts: Any  # [B] int32, each row's first real slot; `prompt_end` marks a row that only fills the bucket
    eos: Any  # [E] int32, unused -1
    seed: Any  # [2] uint32
    do_sample: Any  # bool
    integers: Any  # those of `_INTEGERS`, int32: a call takes longer for each of its arguments
    floats: Any  # those of `_FLOATS`, float32
    active: Any  # [number of processors] bool, in the order of their table
    extras: dict  # the processors' tensors, by name

    def unpacked(self) -> "Request":
        """With a tensor for each integer and float: cut out once, not wherever a program asks for one."""
        return self._replace(integers=ops.unstack(self.integers), floats=ops.unstack(self.floats))

    @property
    def prompt_end(self):
        """The slot behind the prompts, where the first new token goes; int32."""
        return self.integers[_INTEGERS.index("prompt_end")]

    @property
    def max_new_tokens(self):
        """Int32."""
        return self.integers[_INTEGERS.index("max_new_tokens")]

    @property
    def min_new_tokens(self):
        """Int32."""
        return self.integers[_INTEGERS.index("min_new_tokens")]

    @property
    def min_length(self):
        """Int32."""
        return self.integers[_INTEGERS.index("min_length")]

    @property
    def pad(self):
        """Int32."""
        return self.integers[_INTEGERS.index("pad")]

    @property
    def top_k(self):
        """Int32."""
        return self.integers[_INTEGERS.index("top_k")]

    @property
    def early_stopping(self):
        """Int32: 0 for False, 1 for True, 2 for "never"."""
        return self.integers[_INTEGERS.index("early_stopping")]

    @property
    def first_row(self):
        """Int32: the number of the first row, on which what is drawn for it depends."""
        return self.integers[_INTEGERS.index("first_row")]

    @property
    def temperature(self):
        """Float32."""
        return self.floats[_FLOATS.index("temperature")]

    @property
    def top_p(self):
        """Float32."""
        return self.floats[_FLOATS.index("top_p")]

    @property
    def min_p(self):
        """Float32."""
        return self.floats[_FLOATS.index("min_p")]

    @property
    def length_penalty(self):
        """Float32."""
        return self.floats[_FLOATS.index("length_penalty")]


def make_request(
    starts: np.ndarray,
    prompt_end: int,
    eos_room: int,
    options: GenerationOptions,
    processors: Mapping[str, Processor],
    vocab_size: int,
    first_row: int = 0,
) -> Request:
    """The request for rows that begin at the slots `starts [B]` and whose prompts end before `prompt_end`.

    `first_row` is the number of the first one.
    """
    eos = np.full((eos_room,), -1, np.int32)
    eos[: len(options.eos_token_id)] = options.eos_token_id
    values = {
        **{name: getattr(options, name) for name in (*_INTEGERS, *_FLOATS) if hasattr(options, name)},
        "prompt_end": prompt_end,
        "pad": options.fill,
        "first_row": first_row,
        "early_stopping": 2 if options.early_stopping == "never" else int(options.early_stopping),
    }
    extras = {}
    for processor in processors.values():
        extras |= dict(zip(processor.names, processor.tensors(options, vocab_size), strict=True))
    request = Request(
        starts=np.asarray(starts, np.int32),
        eos=eos,
        seed=seed_words(options),
        do_sample=np.bool_(options.do_sample),
        integers=np.array([values[name] for name in _INTEGERS], np.int32),
        floats=np.array([values[name] for name in _FLOATS], np.float32),
        active=np.array([processor.wanted(options) for processor in processors.values()], bool),
        extras={name: np.asarray(value) for name, value in extras.items()},
    )
    return request._replace(extras={name: ops.convert_to_tensor(value) for name, value in request.extras.items()})


def seed_words(options: GenerationOptions) -> np.ndarray:
    """`[2]` uint32: another key for every seed. Only a generation that draws asks NumPy for one."""
    if not options.do_sample:
        return np.zeros((2,), np.uint32)
    if options.seed is None:
        return np.random.randint(0, 2**32, size=2, dtype=np.uint32)
    return np.array([options.seed >> 32, options.seed & 0xFFFFFFFF], np.uint32)


def eos_room(options: GenerationOptions) -> int:
    """Room for end-of-sequence ids: a beam search pays for each with candidates, others do not."""
    count = max(len(options.eos_token_id), 1)
    return 1 << (count - 1).bit_length() if options.num_beams > 1 else max(8, 1 << (count - 1).bit_length())


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
