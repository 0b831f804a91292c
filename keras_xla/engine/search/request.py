"""What is asked of one generation, as tensors of bucketed shape: no value among them compiles anything."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_xla.backend.sizes import power_of_two
from keras_xla.config import GenerationOptions
from keras_xla.engine.search.filters import Filters
from keras_xla.engine.search.processors import Processor

# B batch, E room for end-of-sequence ids, K beams, M length of what an encoder reads

_INTEGERS = ("prompt_end", "min_new_tokens", "min_length", "pad", "early_stopping", "do_sample", "renormalize_logits")
ROW_INTEGERS = ("starts", "rows", "max_new_tokens", "top_k")
_ROW_FLOATS: tuple[str, ...] = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
_ROW_FLOATS += ("length_penalty", "guidance_scale")
_LEAST_TEMPERATURE = 1e-20  # the likeliest token has all the probability; much less, and float32 overflows


class Request(NamedTuple):
    """Arguments of an executable. Values are packed: a call takes longer for each of its arguments."""

    eos: Any  # [E] int32, unused -1
    seeds: Any  # [2, B] uint32
    integers: Any  # those of `_INTEGERS`, int32
    row_integers: Any  # those of `ROW_INTEGERS`, `[B]` int32 each
    row_floats: Any  # those of `_ROW_FLOATS`, `[B]` float32 each
    active: Any  # [number of processors] bool, in the order of their table
    extras: dict  # the processors' tensors, by name

    def unpacked(self) -> "Request":
        """With a tensor for each value: cut out once, not wherever a program asks for one."""
        return self._replace(
            integers=ops.unstack(self.integers),
            row_integers=ops.unstack(self.row_integers),
            row_floats=ops.unstack(self.row_floats),
        )

    @property
    def prompt_end(self):
        """The slot behind the prompts, where the first new token goes; int32."""
        return self.integers[_INTEGERS.index("prompt_end")]

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
    def early_stopping(self):
        """Int32: 0 for False, 1 for True, 2 for "never"."""
        return self.integers[_INTEGERS.index("early_stopping")]

    @property
    def do_sample(self):
        """Bool."""
        return self.integers[_INTEGERS.index("do_sample")] > 0

    @property
    def renormalize_logits(self):
        """Bool."""
        return self.integers[_INTEGERS.index("renormalize_logits")] > 0

    @property
    def starts(self):
        """`[B]` int32, each row's first real slot; `prompt_end` marks a row that only fills the bucket."""
        return self.row_integers[ROW_INTEGERS.index("starts")]

    @property
    def rows(self):
        """`[B]` int32, the numbers of the rows, on which what is drawn for them depends."""
        return self.row_integers[ROW_INTEGERS.index("rows")]

    @property
    def max_new_tokens(self):
        """`[B]` int32."""
        return self.row_integers[ROW_INTEGERS.index("max_new_tokens")]

    @property
    def length_penalty(self):
        """`[B]` float32."""
        return self.row_floats[_ROW_FLOATS.index("length_penalty")]

    @property
    def guidance_scale(self):
        """`[B]` float32."""
        return self.row_floats[_ROW_FLOATS.index("guidance_scale")]

    def filters(self, width: int = 1) -> Filters:
        """What tokens are drawn among, `[B K, 1]` each for a `width` of K."""
        known = dict(zip((*ROW_INTEGERS, *_ROW_FLOATS), (*self.row_integers, *self.row_floats), strict=True))

        def column(x):
            return (x if width == 1 else ops.repeat(x, width))[:, None]

        return Filters(**{name: column(known[name]) for name in Filters._fields})


def make_request(
    starts: np.ndarray,
    prompt_end: int,
    eos_room: int,
    options: GenerationOptions,
    processors: Mapping[str, Processor],
    vocab_size: int,
    rows: np.ndarray,
    allowed: np.ndarray,
    source: np.ndarray | None = None,
) -> Request:
    """The request for rows that begin at the slots `starts [B]` and whose prompts end before `prompt_end`.

    Args:
        starts: See `Request`.
        prompt_end: See `Request`.
        eos_room: E.
        options: What is asked for. A list in it has a value for each of the first rows; the others fill the bucket.
        processors: The logits processors there are, by name.
        vocab_size: Of the model.
        rows: See `Request`.
        allowed: `[B, V / 32]` int32, a bit for each token that may come next.
        source: `[B, M]` int32, the tokens that an encoder reads, padding -1; None where it reads none.
    """
    eos = np.full((eos_room,), -1, np.int32)
    eos[: len(options.eos_token_id)] = options.eos_token_id
    values = {
        **{name: getattr(options, name) for name in _INTEGERS if hasattr(options, name)},
        "prompt_end": prompt_end,
        "pad": options.fill,
        "early_stopping": 2 if options.early_stopping == "never" else int(options.early_stopping),
    }
    batch = len(starts)
    wanted = {name: _filled(getattr(options, name), batch) for name in (*ROW_INTEGERS[2:], *_ROW_FLOATS)}
    wanted["temperature"] = np.maximum(wanted["temperature"], _LEAST_TEMPERATURE)
    integers = [starts, rows, *(wanted[name] for name in ROW_INTEGERS[2:])]
    extras = {"allowed": allowed}
    extras |= {} if source is None else {"source": source}
    for processor in processors.values():
        extras |= dict(zip(processor.names, processor.tensors(options, vocab_size), strict=True))
    return Request(
        eos=eos,
        seeds=seed_words(options, batch),
        integers=np.array([values[name] for name in _INTEGERS], np.int32),
        row_integers=np.array(integers, np.int32),
        row_floats=np.array([wanted[name] for name in _ROW_FLOATS], np.float32),
        active=np.array([processor.wanted(options) for processor in processors.values()], bool),
        extras={name: np.asarray(value) for name, value in extras.items()},
    )


def seed_words(options: GenerationOptions, batch: int) -> np.ndarray:
    """`[2, B]` uint32: another key for every seed. Only a generation that draws asks NumPy for one."""
    if not options.do_sample:
        return np.zeros((2, batch), np.uint32)
    if options.seed is None:
        return np.tile(np.random.randint(0, 2**32, size=(2, 1), dtype=np.uint32), (1, batch))
    seeds = _filled(options.seed, batch)
    return np.array([[seed >> 32, seed & 0xFFFFFFFF] for seed in seeds], np.uint32).T


def eos_room(options: GenerationOptions) -> int:
    """Room for end-of-sequence ids: a beam search pays for each with candidates, others do not."""
    return power_of_two(len(options.eos_token_id), 4 if options.num_beams > 1 else 8)


def _filled(value: Any, batch: int) -> list:
    """A value for each row of the bucket: those that only fill it get the first one."""
    values = list(value) if isinstance(value, tuple) else [value]
    return [*values, *[values[0]] * (batch - len(values))]
