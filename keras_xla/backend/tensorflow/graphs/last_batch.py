"""Smaller batches filled up in the graph with their last row, so that they run in the executable of the full ones."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_xla.backend.filled_batch import FilledBatch
from keras_xla.backend.tensorflow.graphs.graph import leaves_of, repack

Shapes = tuple[tuple[int, ...], ...]

ROWS = tf.TensorSpec((), tf.int32)


def fillable(spec: Any) -> bool:
    """Whether batches of a structure of `tf.TypeSpec` can be filled up, and smaller ones may come at all."""
    leaves = [x for x in tf.nest.flatten(spec) if x is not None]
    dense = all(isinstance(x, tf.TensorSpec) and x.dtype != tf.string and x.shape.rank for x in leaves)
    return bool(leaves) and dense and all(x.shape[0] is None for x in leaves)


def fits(tensors: Sequence[tf.Tensor], shapes: Shapes) -> tf.Tensor:
    """Whether a batch has these shapes, or can be filled up to them."""
    sizes = [shape[0] for shape in shapes]
    rows = tf.stack([tf.shape(x)[0] for x in tensors])
    alike = len(set(sizes)) == 1  # else there is no telling which rows to repeat
    checks = [rows[0] > 0, rows[0] <= sizes[0], tf.reduce_all(tf.equal(rows, rows[0] if alike else sizes))]
    for x, shape in zip(tensors, shapes, strict=True):
        if not x.shape[1:].is_fully_defined():
            checks.append(tf.reduce_all(tf.equal(tf.shape(x)[1:], tf.constant(shape[1:], tf.int32))))
    return tf.reduce_all(tf.stack(checks))


def filling(step: Callable, shapes: Shapes) -> Callable:
    """A step of filled batches as one of batches that `fits`; `shapes` are those of a full batch's tensors."""
    size = shapes[0][0]

    def run(batch):
        tensors = leaves_of(batch)
        rows = tf.shape(tensors[0])[0]

        def longer():
            chosen = tf.minimum(tf.range(size), rows - 1)
            return [tf.gather(x, chosen) for x in tensors]

        full = tf.cond(rows < size, longer, lambda: list(map(tf.identity, tensors)))  # full ones are not copied
        full = map(tf.ensure_shape, full, shapes)
        return step(FilledBatch(repack(batch, full), rows))

    return run
