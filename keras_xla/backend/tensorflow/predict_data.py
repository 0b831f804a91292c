"""What groups of batches of `predict` are taken from: a dataset of the user's."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_xla.backend.tensorflow.runner.trace import without_optionals


@dataclass(frozen=True)
class PredictData:
    """Data for one call of `predict`."""

    dataset: tf.data.Dataset
    batches: int | None  # None if that is not known, or there is no end

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


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """No tuner watches over it: freeing it would wait for that."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
