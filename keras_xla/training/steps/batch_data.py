"""The batches of a call, which `in_order` runs: rows of arrays, or the elements of a dataset.

Both have these attributes: `steps`, how many batches there will be, None if that is not known; `length`, the same with
a smaller last batch as a part of one; `told`, the number that Keras tells its callbacks.
"""

import math
import sys
from typing import Any

import keras

from keras_xla.backend.execution import Execution
from keras_xla.private.keras.tracebacks import warn_as_iterator
from keras_xla.training.session import Session, whole
from keras_xla.training.steps.array_rows import ArrayRows


class RowBatches:
    """Rows of arrays, in their order."""

    def __init__(self, rows: ArrayRows, size: int):
        self._rows, self._size = rows, size
        self.length = rows.rows / size
        self.steps = self.told = math.ceil(self.length)

    def alike(self, done: int) -> int:
        """How many batches of one size are next; the last one may be smaller."""
        return max(self._rows.rows // self._size - done, 1)

    def most_after(self, count: int) -> int:
        """How many batches a group may have behind one of `count`."""
        return sys.maxsize

    def run(self, runner: Any, done: int, count: int, predicts: bool) -> Execution:
        """Run the next `count` batches, or fewer."""
        rows, first = self._rows.rows, done * self._size
        # Plain Keras traces `predict` by the tensors of a batch, and the others by what the pipeline tells of them.
        known = predicts or rows % self._size == 0
        return runner.run_rows(self._rows.batch, min(self._size, rows - first), first, count, known, every=predicts)

    def batch(self, done: int) -> Any:
        """The next batch itself."""
        rows = slice(done * self._size, (done + 1) * self._size)
        return keras.tree.map_structure(lambda x: None if x is None else x[rows], self._rows.batch)

    def end(self, done: int) -> None:
        """All that are wanted have run."""


class DatasetBatches:
    """Elements of a `tf.data` dataset; `steps` as `predict` takes it."""

    def __init__(self, data: Any, steps: Any, session: Session):
        self._data, self._session = data, session
        cardinality = int(data.cardinality())
        self._there = cardinality if cardinality >= 0 else None  # it is not known, or there is no end
        self.told = steps or self._there
        self._wanted = whole(self.told or -1)  # as Keras understands it
        lengths = [n for n in (self._wanted, self._there) if n is not None]
        self.length = self.steps = min(lengths) if self.possible and self._wanted > 0 else None

    @property
    def possible(self) -> bool:
        """Whether Keras goes over them: it raises for no batch at all, and for half of one."""
        return self._there != 0 and isinstance(self._wanted, int)

    def alike(self, done: int) -> int:
        """How many batches are next."""
        return sys.maxsize if self.steps is None else self.steps - done

    def most_after(self, count: int) -> int:
        """Twice as many: batches that were read beforehand tell little about how fast the others come."""
        return 2 * count

    def run(self, runner: Any, done: int, count: int, predicts: bool) -> Execution:
        """Run the next `count` batches, or fewer; raises `StopIteration` if there is none."""
        return runner.run(self._iterator(), count, every=True)

    def batch(self, done: int) -> Any:
        """The next batch itself."""
        return next(self._iterator())

    def end(self, done: int) -> None:
        """All that are wanted have run."""
        if done == self._there:
            if self._wanted > done:
                warn_of_end()
            iter(self._data)  # as Keras makes one more: with each, a dataset that shuffles goes on to its next order

    def _iterator(self) -> Any:
        if self._session.iterator is None:
            self._session.iterator = iter(self._data)
        return self._session.iterator


def warn_of_end() -> None:
    """Warn, as Keras does, of data that have ended."""
    warn_as_iterator(
        "Your input ran out of data; interrupting training. Make sure that your dataset or generator can generate at "
        "least `steps_per_epoch * epochs` batches. You may need to use the `.repeat()` function when building your "
        "dataset."
    )
