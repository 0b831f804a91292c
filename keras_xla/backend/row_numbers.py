"""Row numbers in place of the rows of arrays in memory.

Keras' own pipeline shuffles and cuts the numbers as it would the rows, and the step gathers the rows of the numbers
that it is given. So whatever order Keras has, in whatever version, is the order of the batches.
"""

from typing import Any

import numpy as np

MARK = "keras_xla row numbers"  # key of the only entry of such a batch, by which no other batch can be taken for one
_BITS = 40  # of a number that say which row; those above say of which arrays
MOST_OWNERS = 2 ** (63 - _BITS)  # numbers that arrays can have


def numbered(rows: int, owner: int) -> dict[str, np.ndarray]:
    """The numbers of all rows of the arrays `owner` (below `MOST_OWNERS`), to be given to Keras as `x`."""
    return {MARK: np.arange(rows, dtype="int64") + (owner << _BITS)}


def are_numbers(batch: Any) -> bool:
    """Whether a batch, or the structure that tells of what kind batches are, is one of row numbers."""
    return isinstance(batch, dict) and tuple(batch) == (MARK,)


def owner_of(number: int) -> int:
    """Number of the arrays that a row number belongs to."""
    return int(number) >> _BITS


def rows_of(numbers: Any) -> Any:
    """Numbers of rows within their arrays: an array or a tensor of int64, as given."""
    return numbers % 2**_BITS
