"""Which prompts of a call run together, and where their answers belong."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import WHOLE_PROMPTS, Buckets

MOST_ROWS = 64  # that run at once where no batch buckets are given


@dataclass(frozen=True)
class Part:
    """Prompts that run together.

    Attributes:
        prompts: `(n,)` ints, their numbers in the call.
        options: Theirs.
        room_for: Prompts of the largest part of the call: the last, smaller one takes its batch bucket, and compiles
            nothing. 0 for some of the prompts that do not run together.
    """

    prompts: np.ndarray
    options: GenerationOptions
    room_for: int = field(default=0, kw_only=True)

    @property
    def copies(self) -> int:
        """How many rows each of them takes."""
        return copies_of(self.options)

    @property
    def room(self) -> int:
        """Rows of the largest part of the call."""
        return self.room_for * self.copies

    @property
    def rows(self) -> np.ndarray:
        """The numbers of their rows, `(n * copies,)`."""
        return rows_of(self.prompts, self.copies)

    @property
    def answers(self) -> np.ndarray:
        """The numbers of their answers, `(n * num_return_sequences,)`."""
        return rows_of(self.prompts, self.options.num_return_sequences)

    def of(self, values: Sequence) -> list:
        """Those of a list with one for each prompt of the call that belong to these."""
        return [values[i] for i in self.prompts]

    def of_rows(self, values: Sequence) -> list:
        """Those of a list with one for each row of the call, if there are any, that belong to these rows."""
        return [values[i] for i in self.rows] if values else []


def split(
    lengths: Sequence[int],
    options: GenerationOptions,
    most: int,
    fit: Callable[[int, GenerationOptions], bool] = lambda longest, options: True,
    room_for: int = 0,
) -> list[Part]:
    """All prompts in parts of at most `most` rows. Where there are several, prompts of like size run together.

    Args:
        lengths: Of each prompt, or of what an encoder reads.
        options: Of the call.
        most: Rows.
        fit: From the longest of a part and its options to whether they can run together.
        room_for: Prompts of the whole call, of which some may have been left out: parts have room for as many, up to
            `most` rows, so that a bad prompt makes no batch of a size that nothing was compiled for.
    """
    copies, order = copies_of(options), np.arange(len(lengths))
    size = max(most // copies, 1)
    if len(lengths) > size:
        most_new = options.max_new_tokens
        new = most_new if isinstance(most_new, tuple) and len(most_new) == len(lengths) else [0] * len(lengths)
        order = np.lexsort((-np.asarray(lengths), -np.asarray(new)))  # the longest first: what is too large fails early
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    room_for = max([min(room_for, size), *map(len, parts)])
    parts = [few for part in parts for few in _that_fit(part, lengths, options, fit)]
    return [Part(part, options.of_rows(part), room_for=room_for) for part in parts]


def _that_fit(part: np.ndarray, lengths: Sequence[int], options: GenerationOptions, fit: Callable) -> Iterator:
    """A part, or several where its longest prompt and its longest answer do not fit together."""

    def fits(numbers: Sequence[int]) -> bool:
        return fit(max(lengths[i] for i in numbers), options.of_rows(numbers))

    if len(part) < 2 or fits(part):
        yield part
        return
    together: list[int] = []
    for i in sorted(part, key=lambda i: -lengths[i]):  # long prompts, which have short answers, first
        if together and not fits([*together, i]):
            yield np.array(together)
            together = []
        together.append(i)
    yield np.array(together)


def most_rows(buckets: Buckets, row_bytes: int, limit: int) -> int:
    """How many rows may run at once: of a batch bucket whose caches hold at most `limit` bytes, or of the smallest.

    Args:
        buckets: Of the batch size.
        row_bytes: Of a row's cache.
        limit: Bytes of all caches of a batch.
    """
    sizes = buckets.sizes or [1 << power for power in range(MOST_ROWS.bit_length())]
    return max([size for size in sizes if size * row_bytes <= limit], default=sizes[0])


@dataclass(frozen=True)
class Limits:
    """What decides how many rows run at once.

    Attributes:
        batch: Buckets of the batch size.
        cache: Buckets of the cache.
        most_bytes: That all caches of a batch may hold.
        slot_bytes: Tells the bytes of a row's cache for each slot; None for a model whose caches are not limited.
    """

    batch: Buckets
    cache: Buckets
    most_bytes: int
    slot_bytes: Callable[[], int] | None

    def rows(self, longest: int, options: GenerationOptions, beside: float = 0.0) -> int:
        """How many rows may run at once.

        Args:
            longest: Tokens of the longest prompt.
            options: What each is asked for.
            beside: What else each row takes, in caches of a row.
        """
        if self.slot_bytes is None:
            return most_rows(self.batch, 0, self.most_bytes)
        # As many slots as the bucket has, which may be twice as many as are needed.
        slots = self.cache.nearest(slots_of(longest, options.most_new_tokens, options.num_beams))
        slots *= 2 if options.guided else 1
        return most_rows(self.batch, int(self.slot_bytes() * slots * (1 + beside)), self.most_bytes)

    def with_fewer_tokens(self, longest: int, options: GenerationOptions) -> Iterator[GenerationOptions]:
        """The options, and those that ask for so few new tokens that more rows run at once."""
        yield options
        if self.slot_bytes is None:
            return
        beams, rows = options.num_beams, self.rows(longest, options)
        least = slots_of(longest, max(options.min_new_tokens, 1), beams)
        most = slots_of(longest, options.most_new_tokens, beams)
        for slots in sorted(self.cache.between(least, self.cache.nearest(most)), reverse=True):
            new = (slots - longest + (beams > 1)) // beams
            if new < options.most_new_tokens and self.rows(longest, options.replace(max_new_tokens=new)) > rows:
                options = options.replace(max_new_tokens=new)
                rows = self.rows(longest, options)
                yield options


def copies_of(options: GenerationOptions) -> int:
    """How many rows a prompt takes: a beam search finds its answers in one."""
    return options.num_return_sequences if options.num_beams == 1 else 1


def rows_of(prompts: np.ndarray, copies: int) -> np.ndarray:
    """The numbers of the copies of prompts with these numbers `(n,)`: `(n * copies,)`."""
    return (prompts[:, None] * copies + np.arange(copies)).reshape(-1)


def drawn_by(options: GenerationOptions, rows: np.ndarray) -> np.ndarray:
    """Numbers on which what is drawn for `rows` (their numbers, all copies of each prompt) depends.

    Where each prompt has a seed, its answers are those that it would have alone.
    """
    return np.arange(len(rows)) % copies_of(options) if isinstance(options.seed, tuple) else rows


def slots_of(prompt: int, new: int, beams: int = 1) -> int:
    """Of a cache that holds a prompt and all new tokens; beams have a slot each for every token but the last."""
    return prompt + max(new, beams * new - 1)


def most_slots(longest: int, options: GenerationOptions, grows: bool) -> int:
    """Of a cache that holds all tokens of prompts, of which the longest has so many, and of their answers.

    One that `grows` may have to grow to that; another one takes prompts whole.
    """
    new = options.most_new_tokens
    return slots_of(longest, new, options.num_beams) if grows else WHOLE_PROMPTS.fit(longest) + new
