"""A batch that was filled up to the size of the ones before it."""

from typing import Any, NamedTuple


class FilledBatch(NamedTuple):
    """A batch and how many of its rows count."""

    batch: Any  # as Keras' trainers see it
    rows: Any  # a scalar int32; the rows after so many were added
