"""What groups of batches of `predict` are taken from: a dataset of the user's."""

from typing import Any

import tensorflow as tf

from keras_xla.backend.tensorflow.runner.trace import without_optionals


def takes(data: Any) -> bool:
    """Whether it is a dataset of dense tensors."""
    if not isinstance(data, tf.data.Dataset):
        return False
    leaves = tf.nest.flatten(without_optionals(data.element_spec))
    return all(x is None or (isinstance(x, tf.TensorSpec) and x.shape.rank is not None) for x in leaves)
