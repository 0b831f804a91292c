"""The loop around a step, in one graph: batch after batch, without coming back to Python."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.graph import hidden, leaves_of, repack
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes
from keras_xla.backend.tensorflow.runner.sources import Batches
from keras_xla.backend.tensorflow.runner.trace import Trace


def loop(
    trace: Trace,
    step: Callable,
    shapes: Shapes | None,
    source: Batches,
    joined: bool = False,
    holds: Callable | None = None,
) -> Callable:
    """Feeds a step from an iterator, as long as the batches are for it.

    Args:
        trace: The traced step.
        step: As `ways.make` gives it, or as `last_batch.filling` does for a trace that fills.
        shapes: The shapes that it takes; None for any. Where the trace fills, smaller batches have them, too.
        source: Of a batch, given what comes from the iterator.
        joined: Whether the outputs of all batches are wanted, or those of the last one.
        holds: `holds(tensors of a batch) -> bool tensor`: whether the values are such that the step may run this way;
            None if they always are.

    Returns:
        `run(iterator, count, pending, tensors) -> outputs, ran, pending`. `pending` is an `Optional` element of the
        iterator that goes first, `tensors` those of the source. `outputs` are those of the last of `ran` batches, or of
        all of them, joined along the first axis. Fewer than `count` were run if the data ended, when the `Optional`
        returned is empty, or if a batch is not for this step, which is then in it.
    """
    made = leaves_of(trace.concrete.structured_outputs)
    specs = leaves_of(trace.spec.batch if trace.fills else trace.spec)
    known = shapes or [x.shape for x in specs]

    def mine(pending, tensors):
        element = pending.get_value()
        fit = source.fits(element, known, trace.fills and shapes is not None)
        if holds is None:
            return fit
        return tf.cond(fit, lambda: holds(source.leaves(element, tensors, alike=True)), lambda: tf.constant(False))

    def ready(pending, tensors):
        return tf.cond(pending.has_value(), lambda: mine(pending, tensors), lambda: tf.constant(False))

    def one(pending, tensors):
        leaves = source.leaves(pending.get_value(), tensors, alike=shapes is not None)
        if not trace.fills:
            leaves = _known_as(leaves, known)
        return leaves_of(step(repack(source.spec, leaves)))

    def run(iterator, count, pending, tensors):
        first = tf.cond(pending.has_value(), lambda: pending, iterator.get_next_as_optional)

        keeper = (_All if joined else _Last)(made)

        def more(ran, _kept, pending):
            return tf.logical_and(ran < count, ready(pending, tensors))

        def body(ran, kept, pending):
            before = len(tf.compat.v1.get_default_graph().get_operations())
            outputs = one(pending, tensors)
            # As in plain Keras the step ends, with all that it writes and checks, before a batch is asked for: that may
            # fail, or run Python that looks at variables. Row numbers do neither.
            with tf.control_dependencies([] if source.gathers else _stateful(before)):
                # A batch fetched beyond the last step would have to be handed on.
                rest = tf.cond(
                    ran + 1 < count,
                    iterator.get_next_as_optional,
                    lambda: tf.experimental.Optional.empty(iterator.element_spec),
                )
            return ran + 1, keeper.added(kept, ran, outputs), rest

        ran, kept, rest = tf.while_loop(
            more,
            body,
            (tf.constant(0), keeper.start, first),
            shape_invariants=(tf.TensorShape([]), keeper.invariants, tf.OptionalSpec(iterator.element_spec)),
            parallel_iterations=1,
        )
        return keeper.result(kept), ran, rest

    return tf.function(run, autograph=False)


def rows_loop(
    trace: Trace,
    step: Callable,
    shapes: Shapes | None,
    joined: bool,
    holds: Callable | None = None,
    width: int = 1,
    parallel: int = 1,
) -> Callable:
    """Runs a step on the rows of arrays in their order, as long as the batches are for it; arguments as in `loop`.

    A turn of the loop runs `width` steps, while there are as many, and then one. So many turns may run in `parallel`.

    Returns:
        `run(tensors, rows, first, count) -> outputs, ran`: at most `count` batches of so many rows each, from row
        `first` on; `tensors` are the arrays, flat.
    """
    made = leaves_of(trace.concrete.structured_outputs)
    spec = trace.spec.batch if trace.fills else trace.spec
    known = [x.shape for x in leaves_of(spec)] if trace.fills or not shapes else list(map(tf.TensorShape, shapes))

    def batch(tensors, rows, start):
        with tf.device("CPU:0"):  # where the arrays are: they may not fit anywhere else
            parts = [
                tf.slice(x, [start, *[0] * (x.shape.rank - 1)], [rows, *[-1] * (x.shape.rank - 1)]) for x in tensors
            ]
            if all(shape.rank and shape[0] is None for shape in known):
                parts = hidden(parts)
        return [tf.ensure_shape(x, shape) for x, shape in zip(parts, known, strict=True)]

    def run(tensors, rows, first, count):
        keeper = (_All if joined else _Last)(made)

        def turns(width, state):
            """Turns of so many steps, while there are as many to run."""

            def batches(ran):
                return [batch(tensors, rows, first + (ran + i) * rows) for i in range(width)]

            def more(ran, _kept):
                enough = ran + width <= count
                if holds is None:
                    return enough
                return tf.cond(
                    enough,
                    lambda: tf.reduce_all([holds(each) for each in batches(ran)]),
                    lambda: tf.constant(False),
                )

            def body(ran, kept):
                for i, each in enumerate(batches(ran)):
                    kept = keeper.added(kept, ran + i, leaves_of(step(repack(spec, each))))
                return ran + width, kept

            return tf.while_loop(
                more,
                body,
                state,
                shape_invariants=(tf.TensorShape([]), keeper.invariants),
                parallel_iterations=parallel,
            )

        state = tf.constant(0), keeper.start
        if width > 1:
            state = turns(width, state)
        ran, kept = turns(1, state)
        return keeper.result(kept), ran

    return tf.function(run, autograph=False)


class _Last:
    """The outputs of the last step; zeros if there was none.

    `made` are the outputs of a traced step, flat; `start` are variables of the loop, `invariants` their shapes.
    """

    def __init__(self, made: Sequence[tf.Tensor]):
        # No first step in front of the loop: large ones take seconds to be made ready.
        self.start = [tf.zeros([n or 0 for n in x.shape] if x.shape.rank else [], x.dtype) for x in made]
        self.invariants = [x.shape for x in made]

    def added(self, _kept: list, _i: tf.Tensor, outputs: list) -> list:
        """The variables after step `i`."""
        return outputs

    def result(self, kept: list) -> list:
        """The outputs."""
        return kept


class _All(_Last):
    """The outputs of all steps, joined along the first axis; of shapes that `collectable` accepts."""

    def __init__(self, made: Sequence[tf.Tensor]):
        self.start = [
            tf.TensorArray(x.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=x.shape) for x in made
        ]
        self.invariants = [tf.TensorShape([]) for _ in made]

    def added(self, kept: list, i: tf.Tensor, outputs: list) -> list:
        return [array.write(i, x) for array, x in zip(kept, outputs, strict=True)]

    def result(self, kept: list) -> list:
        return [_joined(array) for array in kept]


def _joined(array: tf.TensorArray) -> tf.Tensor:
    """Its elements along the first axis. A single one is not copied: large outputs come one by one."""
    return tf.cond(array.size() == 1, lambda: array.read(0), array.concat)


def _known_as(leaves: list[tf.Tensor], shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Tensors of which the graph knows no more and no less than this, as in plain Keras' graph for such batches."""
    parts = [_open(x, shape) for x, shape in zip(leaves, map(tf.TensorShape, shapes), strict=True)]
    if any(part is not x for part, x in zip(parts, leaves, strict=True)):
        parts = hidden(parts)
    return [tf.ensure_shape(x, shape) for x, shape in zip(parts, shapes, strict=True)]


def _open(x: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """The tensor, with those of its axes unknown that are unknown in the shape."""
    if x.shape.rank is None or shape.rank != x.shape.rank:
        return x
    sizes = [n if n == m else None for n, m in zip(shape, x.shape, strict=True)]
    hides = any(n is None and m is not None for n, m in zip(shape, x.shape, strict=True))
    return tf.compat.v1.placeholder_with_default(x, sizes) if hides else x


def _stateful(first: int) -> list[tf.Operation]:
    """The operations with effects in the graph under construction, from a number on."""
    made = tf.compat.v1.get_default_graph().get_operations()[first:]
    return [op for op in made if op.op_def is None or op.op_def.is_stateful]


def collectable(trace: Trace) -> bool:
    """Whether the outputs of several batches can be joined in the graph."""
    made = leaves_of(trace.concrete.structured_outputs)
    outputs = tf.nest.flatten(trace.concrete.structured_outputs)
    return len(made) == len(outputs) and all(x.shape.rank and x.shape[1:].is_fully_defined() for x in made)
