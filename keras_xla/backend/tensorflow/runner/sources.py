"""Where the loop around a step gets its batches from: an iterator gives them, or the numbers of their rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.row_numbers import MARK, are_numbers, owner_of, rows_of
from keras_xla.backend.tensorflow.graphs.graph import hidden, leaves_of, repack
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes, fits
from keras_xla.backend.tensorflow.runner.trace import without_optionals


def shapes_of(batch: Any) -> Shapes:
    """The shapes of a batch's tensors, as the key of an executable."""
    return tuple(tuple(x.shape.as_list()) for x in leaves_of(batch))


class Batches:
    """Batches as an iterator gives them; `spec` is the structure of `tf.TypeSpec` of one.

    `tensors` is what the loop takes beside the iterator, flat: nothing.
    """

    gathers = False

    def __init__(self, element_spec: Any):
        self.spec = without_optionals(element_spec)
        self.tensors: list[tf.Tensor] = []

    def leaves(self, element: Any, tensors: Sequence[tf.Tensor], alike: bool) -> list[tf.Tensor]:
        """The tensors of a batch, flat."""
        return leaves_of(without_optionals(element))

    def fits(self, element: Any, shapes: Sequence[Any], filled: bool) -> tf.Tensor:
        """Whether a batch has these shapes, of which any part may be open, or can be filled up to them."""
        leaves = leaves_of(without_optionals(element))
        if filled:
            return fits(leaves, tuple(map(tuple, shapes)))
        checks = [_has(x, tf.TensorShape(shape)) for x, shape in zip(leaves, shapes, strict=True)]
        return tf.reduce_all(tf.stack([tf.constant(True), *[check for check in checks if check is not None]]))

    def example(self, element: Any) -> Any:
        """A batch, as far as its structure, shapes and dtypes go."""
        return without_optionals(element)


class RowsOfArrays(Batches):
    """Batches gathered from arrays in memory, by the row numbers that an iterator gives.

    `arrays` are tensors with all rows, in the structure of a batch.
    """

    gathers = True

    def __init__(self, arrays: Any, element_spec: Any):
        self.tensors = leaves_of(arrays)
        self._arrays = arrays
        self.spec = self._spec(element_spec[MARK].shape[0])

    def _spec(self, rows: int | None) -> Any:
        specs = [tf.TensorSpec([rows, *x.shape[1:]], x.dtype) for x in self.tensors]
        return repack(self._arrays, specs)

    def leaves(self, element: Any, tensors: Sequence[tf.Tensor], alike: bool) -> list[tf.Tensor]:
        """The rows of the arrays `tensors` that an element has the numbers of.

        `alike` tells whether the graph may know that all parts have as many rows. TensorFlow's optimizer adds in
        another order where it does, and plain Keras' graph does not know unless the pipeline tells how many.
        """
        numbers = rows_of(element[MARK])
        with tf.device("CPU:0"):  # where the arrays are: they may not fit anywhere else
            parts = [tf.gather(x, numbers) for x in tensors]
        return hidden(parts) if not alike and numbers.shape[0] is None else parts

    def fits(self, element: Any, shapes: Sequence[Any], filled: bool) -> tf.Tensor:
        numbers, size = element[MARK], shapes[0][0]
        if size is None or numbers.shape.is_fully_defined():
            return tf.constant(True)
        rows = tf.size(numbers)
        return tf.logical_and(rows > 0, rows <= size) if filled else tf.equal(rows, size)

    def example(self, element: Any) -> Any:
        return self._spec(int(element[MARK].shape[0]))


def _has(x: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor | None:
    """Whether a tensor has a shape, of which any part may be open; None if that is known."""
    if shape.rank is None:
        return None
    if x.shape.rank is None:
        return tf.cond(tf.equal(tf.rank(x), shape.rank), lambda: _sizes_are(x, shape), lambda: tf.constant(False))
    unknown = any(n is not None and m is None for n, m in zip(shape, x.shape, strict=True))
    return _sizes_are(x, shape) if unknown else None


def _sizes_are(x: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    wanted = tf.constant([-1 if n is None else n for n in shape], tf.int32)
    return tf.reduce_all(tf.logical_or(tf.equal(tf.shape(x), wanted), tf.less(wanted, 0)))


def source_of(element_spec: Any, first: Any, arrays: Mapping[int, Any]) -> Batches:
    """Where the batches of an iterator come from, given its spec and its first element.

    `arrays` are, by the number that their row numbers carry, objects whose `batch` has all rows as tensors.
    """
    if not are_numbers(element_spec):
        return Batches(element_spec)
    return RowsOfArrays(_arrays_of(first, arrays), element_spec)


def gathered(batch: Any, arrays: Mapping[int, Any]) -> Any:
    """A batch of tensors: the same, or the rows that it has the numbers of."""
    if not are_numbers(batch):
        return batch
    numbers, arrays = rows_of(batch[MARK]), _arrays_of(batch, arrays)
    with tf.device("CPU:0"):
        return keras.tree.map_structure(lambda x: None if x is None else tf.gather(x, numbers), arrays)


def _arrays_of(batch: dict, arrays: Mapping[int, Any]) -> Any:
    owner = owner_of(batch[MARK][0])
    if owner not in arrays:
        raise RuntimeError(
            "keras_xla received row numbers of arrays whose call of fit, evaluate or predict has ended: an iterator of "
            "that call was kept. Call the method again with the data."
        )
    return arrays[owner].batch
