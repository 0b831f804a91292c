"""Shape buckets: the few sizes that inputs are padded to, so that XLA compiles few times."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

from keras_xla.backend.sizes import power_of_two

# Each is two compilations; a step over 128 slots costs hardly more than one over fewer.
CACHE_BUCKETS = tuple(2**power for power in range(7, 21))


@dataclass(frozen=True)
class Buckets:
    """Sizes that one axis may have.

    Args:
        name: What the axis counts, for errors ("prompt").
        sizes: The sizes allowed, or None for the powers of two from `smallest` on.
        smallest: The first power of two.

    Raises:
        ValueError: for sizes that are empty, not above 0, or not increasing.
    """

    name: str
    sizes: tuple[int, ...] | None = None
    smallest: int = 1

    def __post_init__(self):
        sizes = self.sizes
        if sizes is None:
            return
        increasing = len(sizes) > 0 and sizes[0] > 0 and all(a < b for a, b in itertools.pairwise(sizes))
        if not increasing:
            raise ValueError(f"Received {self.name}_buckets={sizes}; expected increasing sizes above 0.")

    def holds(self, size: int) -> bool:
        """Whether there is a bucket for `size`."""
        return self.sizes is None or size <= self.sizes[-1]

    def fit(self, size: int) -> int:
        """The smallest bucket that holds `size`.

        Raises:
            ValueError: if it is larger than the largest bucket.
        """
        if self.sizes is None:
            return power_of_two(size, self.smallest)
        for bucket in self.sizes:
            if size <= bucket:
                return bucket
        raise ValueError(
            f"This needs a {self.name} of {size}; the largest of {self.name}_buckets={self.sizes} is smaller. Add a "
            "larger one, or pass less at once."
        )

    def nearest(self, size: int) -> int:
        """The bucket that holds `size`; the largest where none does."""
        return self.fit(size) if self.sizes is None or self.holds(size) else self.sizes[-1]

    def between(self, first: int, last: int) -> Iterator[int]:
        """The buckets from the one that holds `first` to the one that holds `last`."""
        bucket = self.fit(first)
        yield bucket
        while bucket < last:
            bucket = self.fit(bucket + 1)
            yield bucket

    def below(self, longest: int, beside: int = 0) -> list[int]:
        """For each bucket before the one that holds `longest` with `beside`: the most that it holds with `beside`."""
        sizes = self.between(1, self.nearest(longest + beside))
        return [size - beside for size in sizes if 0 < size - beside < longest]


WHOLE_PROMPTS = Buckets("prompt", None, 32)  # that do not run in chunks


def make_buckets(name: str, sizes: Sequence[int] | None, smallest: int) -> Buckets:
    """`Buckets` from what a user passed.

    Raises:
        TypeError: for what is no sequence of ints.
    """
    if sizes is not None and not (
        isinstance(sizes, Sequence)
        and not isinstance(sizes, str)
        and all(isinstance(s, Integral) and not isinstance(s, bool) for s in sizes)
    ):
        raise TypeError(f"Received {name}_buckets={sizes!r}; expected a list of ints, such as [1, 8].")
    return Buckets(name, None if sizes is None else tuple(int(s) for s in sizes), smallest)
