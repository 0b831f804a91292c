"""What groups of batches of `predict` are taken from: a dataset of the user's, or one of row numbers."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_xla.backend.row_numbers import MARK, numbered
from keras_xla.backend.tensorflow.trace import without_optionals


@dataclass(frozen=True)
class PredictData:
    """Data for one call of `predict`.

    Attributes:
        dataset: Gives the batches, or the numbers of their rows.
        batches: How many; None if that is not known, or there is no end. Not whole where the last one is smaller.
    """

    dataset: tf.data.Dataset
    batches: float | None

    @staticmethod
    def counter() -> tf.data.Dataset:
        """Numbers without an end."""
        return _untuned(tf.data.Dataset.counter())


def of_dataset(data: Any) -> PredictData | None:
    """For a dataset of dense tensors; None for anything else."""
    if not isinstance(data, tf.data.Dataset):
        return None
    leaves = tf.nest.flatten(without_optionals(data.element_spec))
    if not all(x is None or (isinstance(x, tf.TensorSpec) and x.shape.rank is not None) for x in leaves):
        return None
    length = int(data.cardinality())
    return PredictData(data, None if length < 0 else length)


def of_rows(rows: int, owner: int, batch_size: int) -> PredictData:
    """For the rows of arrays in memory, in their order.

    Args:
        rows: How many there are.
        owner: Number of the arrays.
        batch_size: Rows of a batch.
    """
    first = int(numbered(1, owner)[MARK][0])
    numbers = tf.data.Dataset.range(first, first + rows)
    batches = numbers.batch(batch_size, drop_remainder=rows % batch_size == 0)
    return PredictData(_untuned(batches.map(lambda batch: {MARK: batch})), rows / batch_size)


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """No tuner watches over it: freeing it would wait for that."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
