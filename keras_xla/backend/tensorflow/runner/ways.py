"""The ways to run a traced step on TensorFlow.

`"graph"` is what plain Keras does. `"xla"` is one executable for fixed shapes, with random numbers drawn in front of
it; `"partial"` leaves the operations that XLA cannot compile, or is slow at, to the plain graph, too.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.graphs.graph import leaves_of, repack
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes
from keras_xla.backend.tensorflow.partial.split import NotSplittable, split
from keras_xla.backend.tensorflow.runner.trace import Trace


def make(trace: Trace, way: str, shapes: Shapes | None) -> Callable:
    """The step as a function of a batch, run in one way: `"graph"`, `"xla"` or `"partial"`.

    `shapes` are the only ones that it will be called with, in the order of the tensors; None for any. Raises
    `NotSplittable` for `"partial"`, and for `"xla"` with random numbers; see `split`.
    """
    if way == "graph":
        return trace.concrete  # as it is, also for batches of which more is known
    tensors = leaves_of(trace.spec)
    towers = way == "partial" and trace.facts.tower > 0
    if shapes is not None and (trace.facts.random or trace.facts.blocked or towers or trace.checks(shapes).late):
        specs = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes, tensors, strict=True)]
        checks = Checks(_for_xla(trace, specs), specs) if trace.facts.loops else trace.checks(shapes)
        run = split(checks, towers)
        return lambda batch: run(leaves_of(batch))
    # The gradients of loops are traced differently for XLA.
    inside = trace.step if trace.facts.loops else trace.concrete

    def one_step(batch):
        return inside(batch)

    return tf.function(one_step, jit_compile=True, autograph=False)


def _for_xla(trace: Trace, specs: Sequence[tf.TensorSpec]):
    """The step traced again, so that the lists that the gradients of loops keep have a fixed length."""
    traced = tf.function(trace.step, jit_compile=True)
    try:
        return traced.get_concrete_function(repack(trace.spec, specs))
    except ValueError as error:  # a loop of which nobody knows how often it turns
        raise NotSplittable(str(error)) from error
