"""The ways to run a traced step on TensorFlow.

`"graph"` is what plain Keras does. `"xla"` is one executable for fixed shapes, with random numbers drawn in front of
it; `"partial"` leaves the operations that XLA cannot compile, or is slow at, to the plain graph, too.
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_xla.backend.new_shapes import ShapesRefused, WayFailed
from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.graphs.graph import leaves_of, repack
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes
from keras_xla.backend.tensorflow.partial.split import NotSplittable, redrawn, split
from keras_xla.backend.tensorflow.runner.trace import Trace, Traced
from keras_xla.backend.tensorflow.stored_calls import StoredCalls, xla_function
from keras_xla.private.tensorflow.xla_flags import keep_nan


def make(trace: Trace, way: str, shapes: Shapes | None, calls: StoredCalls | None = None) -> Callable:
    """The step as a function of a batch, run in one way: `"graph"`, `"xla"` or `"partial"`.

    `shapes` are the only ones that it will be called with, in the order of the tensors; None for any, in the plain
    graph. `calls` keep the executables; None keeps none. Raises `NotSplittable` for `"partial"`, and for `"xla"` with
    random numbers (see `split`), and `WayFailed` where it has to be traced again, and is another step by now.
    """
    if way == "graph" or shapes is None:
        return trace.concrete  # as it is, also for batches of which more is known
    towers, parts = _towers(trace, way), in_parts(trace, way, shapes)
    specs = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes, leaves_of(trace.spec), strict=True)]
    try:
        again = _for_xla(trace, specs) if trace.facts.loops else None
    except ValueError as error:  # a loop of which nobody knows how often it turns, say
        if parts:
            raise NotSplittable(str(error)) from error
        raise
    if parts:
        run = split(Checks(again, specs) if again else trace.checks(shapes), towers, calls)
        return lambda batch: run(leaves_of(batch))

    def one_step(batch):
        return trace.concrete(batch)

    if again is not None:
        return again if calls is None else functools.partial(calls.call, again)
    return xla_function(one_step, calls)


def in_parts(trace: Trace, way: str, shapes: Shapes | None) -> bool:
    """Whether some of the step runs plainly in that way, and some through XLA; arguments as for `make`."""
    facts = trace.facts
    if way == "graph" or shapes is None:
        return False
    if facts.random or facts.blocked or _towers(trace, way):
        return True
    checks = trace.checks(shapes)
    return bool(checks.late or checks.beside)


def redrawn_in(trace: Trace, way: str, shapes: Shapes | None) -> list[str]:
    """Types of the operations that draw other random numbers in that way than in the plain graph."""
    if way == "graph" or shapes is None or not trace.facts.random:
        return []
    return redrawn(trace.checks(shapes), _towers(trace, way))


def _towers(trace: Trace, way: str) -> bool:
    return way == "partial" and trace.facts.tower > 0


def _for_xla(trace: Trace, specs: Sequence[tf.TensorSpec]):
    """The step traced again, so that the lists that the gradients of loops keep have a fixed length.

    What Python has changed since the first trace would count here, and nowhere else: then the plain graph runs. There
    is none for a step that takes filled batches.
    """
    if not trace.still_the_same():
        told = "the step reads other values of Python than when it was traced; call compile again after such a change"
        if trace.fills:
            raise WayFailed(told, lasting=False)
        raise ShapesRefused(told, lasting=False)

    def one_step(batch):
        with trace.closed():
            return trace.step(batch)

    keep_nan()
    traced = tf.function(one_step, jit_compile=True, autograph=False)
    again = traced.get_concrete_function(repack(trace.spec, specs))
    seen = Traced(again)
    if {*map(id, seen.changed)} != {*map(id, trace.changed)}:
        told = "the step changes other variables than before; call compile again after a change of what is trainable"
        raise WayFailed(told, lasting=False)
    if seen.draws_and_writes != trace.draws_and_writes:  # a `TimeDistributed` goes over a known time in Python, say
        told = "traced with known sizes, the step draws random numbers or writes variables another number of times"
        raise ShapesRefused(told, lasting=False)  # which is told: the plain graph will raise nothing
    return again
