"""Steps on the rows of arrays in one graph: batches are cut out, and outputs kept, without coming back to Python."""

from collections.abc import Callable

import tensorflow as tf

from keras_xla.backend.tensorflow.graph import leaves_of, repack
from keras_xla.backend.tensorflow.loop_outputs import All, Last
from keras_xla.backend.tensorflow.trace import Trace


def orders(rows: int) -> tf.data.Dataset:
    """Each pass over it gives one tensor: the numbers of so many rows, in the order that Keras' `fit` would take them.

    These are the operations with which Keras' data adapter shuffles arrays, so that they draw from the same seeds.
    """

    def permutation(_):
        return tf.random.shuffle(tf.range(rows, dtype=tf.int64))

    return tf.data.Dataset.range(1).map(permutation).prefetch(1)


def rows(trace: Trace, step: Callable, size: int | None, joined: bool) -> Callable:
    """Runs a step on batches of rows of tensors.

    Args:
        trace: The traced step.
        step: As `tensorflow_ways.make` gives it.
        size: Rows of a batch, if the graph shall know; where plain Keras' does not, it would add in another order.
        joined: Whether the outputs of all batches are wanted, or those of the last one.

    Returns:
        `run(arrays, order, rows, first, count) -> outputs`: `count` batches of so many rows each, from row `first` on,
        in the structure of a batch, their outputs joined along the first axis, or the last ones, flat. `order` has the
        numbers of the rows; None for rows as they come.
    """
    made = leaves_of(trace.concrete.structured_outputs)

    def batch(arrays, order, rows, start):
        def cut(x):
            part = tf.slice(x, [start, *[0] * (x.shape.rank - 1)], [rows, *[-1] * (x.shape.rank - 1)])
            return tf.ensure_shape(part, (size, *x.shape[1:]))

        with tf.device("CPU:0"):  # where the arrays are: they may not fit anywhere else
            if order is None:
                parts = tuple(map(cut, leaves_of(arrays)))
            else:
                chosen = cut(order)
                parts = tuple(tf.gather(x, chosen) for x in leaves_of(arrays))
        if size is None:  # nor may the graph find out that all parts have as many rows
            parts = tf.experimental.Optional.from_value(parts).get_value()
        return repack(arrays, parts)

    def run(arrays, order, rows, first, count):
        keeper = All(made) if joined else Last(made)

        def body(i, kept):
            outputs = leaves_of(step(batch(arrays, order, rows, first + i * rows)))
            return i + 1, keeper.added(kept, i, outputs)

        _, kept = tf.while_loop(
            lambda i, _: i < count,
            body,
            (tf.constant(0), keeper.start),
            shape_invariants=(tf.TensorShape([]), keeper.invariants),
            parallel_iterations=1,
        )
        return keeper.result(kept)

    return tf.function(run, autograph=False)


def collectable(trace: Trace) -> bool:
    """Whether the outputs of several batches can be joined in the graph."""
    made = leaves_of(trace.concrete.structured_outputs)
    outputs = tf.nest.flatten(trace.concrete.structured_outputs)
    return len(made) == len(outputs) and all(x.shape.rank and x.shape[1:].is_fully_defined() for x in made)
