"""The batches of a `tf.data` dataset for `predict`, many of them at a time once they have been alike for a while."""

from typing import Any

import tensorflow as tf

from keras_xla.backend.tensorflow.trace import without_optionals
from keras_xla.backend.tensorflow.ways import shapes_of

ALIKE = 8  # batches of the same shapes, one after the other, before a graph is made that loops over those to come


def streams(data: Any) -> bool:
    """Whether data are a dataset of dense tensors."""
    if not isinstance(data, tf.data.Dataset):
        return False
    leaves = tf.nest.flatten(without_optionals(data.element_spec))
    return all(x is None or (isinstance(x, tf.TensorSpec) and x.shape.rank is not None) for x in leaves)


class Stream:
    """One pass over a dataset.

    Args:
        dataset: One that `streams` accepts.

    Attributes:
        length: How many batches it has; None if that is not known, or there is no end.
    """

    def __init__(self, dataset: tf.data.Dataset):
        length = int(dataset.cardinality())
        self.length = None if length < 0 else length
        self._iterator, self._pending = iter(dataset), None
        self._last, self._alike = None, 0

    def run(self, runner, count: int) -> tuple[Any, int]:
        """The outputs of the next batches, joined along the first axis, and how many there were.

        Args:
            runner: A `tensorflow_runner.Runner`.
            count: At most so many.

        Raises:
            StopIteration: There is no batch left.
        """
        if count > 1 and self._alike >= ALIKE and self._pending is None:
            made = runner.run_for_all(self._iterator, count, self._last)
            if made is not None:
                outputs, ran, pending = made
                self._pending = None if ran == count else pending
                if ran:
                    return outputs, ran
        batch = self._next()
        same = self._last is not None and shapes_of(batch) == shapes_of(self._last)
        self._last, self._alike = batch, self._alike + 1 if same else 1
        return runner.run_batch(batch), 1

    @staticmethod
    def numbers() -> tf.data.Dataset:
        """Numbers without an end. No tuner watches over them: freeing them would wait for it."""
        options = tf.data.Options()
        options.autotune.enabled = False
        return tf.data.Dataset.counter().with_options(options)

    def let_go(self) -> list:
        """The only references to its iterator and its batches, in a list."""
        held = [self._iterator, self._pending, self._last]
        self._iterator = self._pending = self._last = None
        return held

    def _next(self) -> Any:
        pending, self._pending = self._pending, None
        if pending is None:
            return without_optionals(next(self._iterator))
        if not pending.has_value():
            raise StopIteration
        return without_optionals(pending.get_value())
