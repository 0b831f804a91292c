"""Predict the rows of arrays in one graph: batches are cut out and outputs collected without coming back to Python."""

from collections.abc import Callable

import tensorflow as tf

from keras_xla.backend.tensorflow_graph import leaves_of, repack
from keras_xla.backend.tensorflow_trace import Trace


def rows(trace: Trace, step: Callable, size: int) -> Callable:
    """Runs a step on batches of `size` rows of tensors.

    Args:
        trace: The traced step.
        step: As `tensorflow_ways.make` gives it.
        size: Rows of a batch.

    Returns:
        `run(arrays, first, count) -> outputs`: batches number `first` to `first + count`, in the structure of a batch,
        their outputs joined along the first axis, flat.
    """

    def run(arrays, first, count):
        def batch(i):
            def cut(x):
                part = tf.slice(x, [i * size, *[0] * (x.shape.rank - 1)], [size, *[-1] * (x.shape.rank - 1)])
                return tf.ensure_shape(part, (size, *x.shape[1:]))

            return repack(arrays, map(cut, leaves_of(arrays)))

        made = leaves_of(trace.concrete.structured_outputs)
        collected = [
            tf.TensorArray(x.dtype, size=count, infer_shape=False, element_shape=[size, *x.shape[1:]]) for x in made
        ]

        def body(i, *collected):
            outputs = leaves_of(step(batch(first + i)))
            return (i + 1, *(array.write(i, x) for array, x in zip(collected, outputs, strict=True)))

        _, *collected = tf.while_loop(
            lambda i, *_: i < count, body, (tf.constant(0), *collected), parallel_iterations=1
        )
        return [array.concat() for array in collected]

    return tf.function(run, autograph=False)


def collectable(trace: Trace, size: int) -> bool:
    """Whether every output has one row for each of the batch's `size` rows, and shapes that do not vary otherwise."""
    made = leaves_of(trace.concrete.structured_outputs)
    outputs = tf.nest.flatten(trace.concrete.structured_outputs)
    return len(made) == len(outputs) and all(
        x.shape.rank and x.shape[0] in (None, size) and x.shape[1:].is_fully_defined() for x in made
    )
