"""The ways to run a traced step on TensorFlow, and the graph that feeds it from an iterator.

`"graph"` is what plain Keras does. `"xla"` is one executable for fixed shapes, with random numbers drawn in front of
it; `"partial"` leaves the operations that XLA cannot compile, or is slow at, to the plain graph, too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_xla.backend.tensorflow import last_batch as tensorflow_filled
from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.graph import leaves_of, repack
from keras_xla.backend.tensorflow.last_batch import Shapes
from keras_xla.backend.tensorflow.loop_outputs import All, Last
from keras_xla.backend.tensorflow.partial.split import NotSplittable, split
from keras_xla.backend.tensorflow.trace import Trace, without_optionals


def shapes_of(batch: Any) -> Shapes:
    """The shapes of a batch's tensors, as the key of an executable."""
    return tuple(tuple(x.shape.as_list()) for x in leaves_of(batch))


def make(trace: Trace, way: str, shapes: Shapes | None) -> Callable:
    """The step as a function of a batch, run in one way.

    Args:
        trace: The traced step.
        way: `"graph"`, `"xla"` or `"partial"`.
        shapes: The only shapes that it will be called with, in the order of the tensors; None for any.

    Raises:
        NotSplittable: for `"partial"`, and for `"xla"` with random numbers; see `split`.
    """
    if way == "graph":
        return trace.function
    tensors = leaves_of(trace.spec)
    towers = way == "partial" and trace.facts.tower > 0
    if shapes is not None and (trace.facts.random or trace.facts.blocked or towers or trace.checks(shapes).late):
        specs = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes, tensors, strict=True)]
        checks = Checks(_for_xla(trace, specs), specs) if trace.facts.loops else trace.checks(shapes)
        run = split(checks, towers)
        return lambda batch: run(leaves_of(batch))
    # The gradients of loops are traced differently for XLA.
    inside = trace.step if trace.facts.loops else trace.function

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


def loop(
    trace: Trace, step: Callable, shapes: Shapes | None, joined: bool = False, alike: Shapes | None = None
) -> Callable:
    """Feeds a step from an iterator, as long as the batches have the shapes.

    Args:
        trace: The traced step.
        step: As `make` gives it, or as `tensorflow_filled.filling` does for a trace that fills.
        shapes: The shapes that it takes; None for any. Where the trace fills, smaller batches have them, too.
        joined: Whether the outputs of all batches are wanted, or those of the last one.
        alike: The shapes that batches must have for other reasons; the graph does not know them from here.

    Returns:
        `run(iterator, count, pending) -> outputs, ran, pending`. `pending` is an `Optional` batch that goes first.
        `outputs` are those of the last of `ran` batches, or of all of them, joined along the first axis. Fewer than
        `count` were run if the data ended, when the `Optional` returned is empty, or if a batch has other shapes, which
        is then in it.
    """
    made, alike = leaves_of(trace.concrete.structured_outputs), shapes or alike
    known = shapes or [x.shape for x in leaves_of(trace.spec)]

    def fits(batch):
        if trace.fills:
            return tensorflow_filled.fits(leaves_of(batch), shapes)
        checks = [tf.constant(True)]
        for x, shape in zip(leaves_of(batch), alike or (), strict=bool(alike)):
            if not x.shape.is_fully_defined():
                checks.append(tf.reduce_all(tf.equal(tf.shape(x), tf.constant(shape, tf.int32))))
        return tf.reduce_all(tf.stack(checks))

    def value(pending):
        return without_optionals(pending.get_value())

    def ready(pending):
        return tf.cond(pending.has_value(), lambda: fits(value(pending)), lambda: tf.constant(False))

    def one(pending):
        batch = value(pending)
        if alike and not trace.fills:
            batch = repack(batch, map(tf.ensure_shape, leaves_of(batch), known))
        return leaves_of(step(batch))

    def run(iterator, count, pending):
        first = tf.cond(pending.has_value(), lambda: pending, iterator.get_next_as_optional)

        keeper = All(made) if joined else Last(made)

        def more(ran, _kept, pending):
            return tf.logical_and(ran < count, ready(pending))

        def body(ran, kept, pending):
            kept = keeper.added(kept, ran, one(pending))
            # A batch fetched beyond the last step would have to be handed on.
            rest = tf.cond(
                ran + 1 < count,
                iterator.get_next_as_optional,
                lambda: tf.experimental.Optional.empty(iterator.element_spec),
            )
            return ran + 1, kept, rest

        ran, kept, rest = tf.while_loop(
            more,
            body,
            (tf.constant(0), keeper.start, first),
            shape_invariants=(tf.TensorShape([]), keeper.invariants, tf.OptionalSpec(iterator.element_spec)),
            parallel_iterations=1,
        )
        return keeper.result(kept), ran, rest

    return tf.function(run, autograph=False)
