"""Batches of a `tf.data.Dataset` padded inside its pipeline, whatever backend Keras runs on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def map_batches(dataset: tf.data.Dataset, padding: Callable) -> tf.data.Dataset:
    """The dataset with `padding(batch, Tensors(...))` for every batch."""
    is_tuple = type(dataset.element_spec) is tuple  # tf.data gives a named tuple as one argument

    @tf.autograph.experimental.do_not_convert
    def pad(*parts):
        return padding(parts if is_tuple else parts[0], Tensors())

    return dataset.map(pad)


def open_axis(spec: Any, axis: int) -> bool:
    """Whether a leaf of an `element_spec` has such an axis, which varies; raises `ValueError` if its rank is open."""
    if not isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec)):
        return False
    if spec.shape.rank is None:
        raise ValueError(
            f"keras_xla.bucket_lengths received a dataset with {spec}, whose rank is not known; pass leaves=[...], and "
            "give the dataset shapes (output_signature of from_generator, tf.ensure_shape in a map)."
        )
    return spec.shape.rank > axis and spec.shape[axis] is None


class Tensors:
    """What padding does, in the graph of a dataset; dense and ragged tensors."""

    def rank(self, x: Any) -> int:
        if isinstance(x, tf.SparseTensor) or x.shape.rank is None:
            raise ValueError(
                f"keras_xla.bucket_lengths received {x}; it expects a dense or ragged tensor of known rank. Use "
                "tf.sparse.to_dense or tf.ensure_shape in a map before it."
            )
        return x.shape.rank

    def dtype(self, x: Any) -> np.dtype:
        return np.dtype(x.dtype.as_numpy_dtype)

    def length(self, x: Any, axis: int) -> tf.Tensor:
        if isinstance(x, tf.RaggedTensor):
            return tf.cast(x.bounding_shape(axis=axis), tf.int32)
        return tf.shape(x)[axis]

    def size(self, lengths: Mapping[str, tf.Tensor], sizes: Sequence[int], too_long: str) -> tf.Tensor:
        longest = tf.reduce_max(tf.stack(list(lengths.values())))
        message = f"{too_long} Received: {', '.join(map(repr, lengths))} with a length of"
        fits = tf.debugging.Assert(longest <= sizes[-1], [message, longest])
        with tf.control_dependencies([fits]):
            return tf.gather(sizes, tf.searchsorted(sizes, tf.reshape(longest, [1]))[0])

    def pad(self, x: Any, axis: int, size: tf.Tensor, value: Any) -> tf.Tensor:
        value = tf.constant(value, x.dtype)
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(default_value=value)
        before, after = [[0, 0]] * axis, [[0, 0]] * (x.shape.rank - axis - 1)
        padded = tf.pad(x, [*before, [0, size - tf.shape(x)[axis]], *after], constant_values=value)
        padded.set_shape([*x.shape[:axis], None, *x.shape[axis + 1 :]])
        return padded

    def real(self, x: Any, axis: int, size: tf.Tensor) -> tf.Tensor:
        kind = keras.config.floatx()
        if isinstance(x, tf.RaggedTensor) and x.ragged_rank >= axis:  # each row knows its own length
            splits = x.nested_row_splits[:axis]
            ones = tf.RaggedTensor.from_nested_row_splits(tf.ones(tf.reshape(splits[-1][-1], [1]), kind), splits)
        elif isinstance(x, tf.RaggedTensor):
            ones = tf.ones(tf.cast(x.bounding_shape(), tf.int32)[: axis + 1], kind)
        else:
            ones = tf.ones(tf.shape(x)[: axis + 1], kind)
            ones.set_shape(x.shape[: axis + 1])
        return self.pad(ones, axis, size, 0)

    def ones(self, x: Any) -> tf.Tensor:
        rows = x.nrows() if isinstance(x, tf.RaggedTensor) else tf.shape(x)[0]
        return tf.ones(tf.reshape(rows, [1]), keras.config.floatx())

    def floats(self, x: Any) -> tf.Tensor:
        return tf.cast(x, keras.config.floatx())

    def whole_over_real(self, real: tf.Tensor) -> tf.Tensor:
        # Half precision has no numbers as large as these sums.
        whole, part = tf.cast(tf.size(real), "float32"), tf.reduce_sum(tf.cast(real, "float32"))
        return real * tf.cast(tf.math.divide_no_nan(whole, part), real.dtype)

    def done(self, x: tf.Tensor, axis: int) -> tf.Tensor:
        return x
