"""Observed train, test and predict functions on TensorFlow.

XLA compiles once for each traced function and concrete shapes of its arguments, and neither is visible from
Python: the batches live inside `tf.data`, and a smaller last batch compiles again without a new trace. So the
graph that feeds the compiled step returns, beside the outputs of the step, a record of every batch it ran:
which trace, and what shapes. An int argument whose value XLA needs as a shape compiles for each value too;
that is not in the record.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.tensorflow_ops import blocking_ops

_UNKNOWN_RANK_SLOTS = 8  # XLA itself stops at rank 8 for most kernels
_NOT_RUN = -1


def observed_step(
    model,
    kind: str,
    keras_make: Callable,
    own: bool,
    names: Callable,
    refuse: Callable,
    saw: Callable,
    from_iterator: bool = False,
) -> Callable:
    """The function that `fit`, `evaluate` or `predict` calls for each execution, with every batch shape reported.

    Args:
        model: A compiled Keras model with `jit_compile=True`.
        kind: `"train"`, `"test"` or `"predict"`.
        keras_make: Builds Keras' own function; used under `tf.distribute` and where `own` says so.
        own: Whether the model's class builds a function of its own.
        names: `names(data)` names the tensors of a batch.
        refuse: Called with the `BlockingOp`s of a newly traced step before anything runs; raises.
        saw: `saw([(trace, [(name, shape, dtype), ...]), ...], seconds)` with the batches of one execution.
        from_iterator: Whether `predict` too gives its iterator, rather than a list of batches.
    """
    distributed = tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy()
    if own or distributed:
        return _watched(keras_make(), names, saw)
    step = _Step(model, kind, names, refuse, saw)
    return step.run_predict if kind == "predict" and not from_iterator else step.run


class _Step:
    """One compiled step and the graphs around it that feed it."""

    def __init__(self, model, kind, names, refuse, saw):
        self._names, self._refuse, self._saw = names, refuse, saw
        self._steps = model.steps_per_execution
        self._checked: set[str] = set()
        self._numbers: dict[tuple, int] = {}
        self._layouts: list[tuple[str, list[str], list[str], list[int | None]]] = []
        self._last = threading.local()
        step = getattr(model, f"{kind}_step")
        strategy = model.distribute_strategy

        @tf.autograph.experimental.do_not_convert
        def one_step_on_data(data):
            return strategy.run(step, args=(data,))

        # Traced with the batch axis unknown where it varies, as Keras does: one trace, one executable for
        # each size.
        self._compiled = tf.function(one_step_on_data, reduce_retracing=True, jit_compile=True)
        plain = tf.autograph.experimental.do_not_convert
        self._on_iterator = tf.function(plain(self._iterate), reduce_retracing=True)
        self._on_batches = tf.function(plain(self._each), reduce_retracing=True)

    def run(self, iterator):
        """Train or test on the next `steps_per_execution` batches; the outputs of the last one."""
        if isinstance(iterator, tf.data.Iterator):
            return self._report(self._on_iterator, iterator)
        outputs = None
        for _, data in zip(range(self._steps), iterator, strict=False):
            outputs = self._report(self._on_batches, [data])
        return outputs

    def run_predict(self, batches):
        """Predict a list of batches; their outputs joined along the first axis."""
        return self._report(self._on_batches, list(batches))

    def _report(self, function, argument):
        start = time.perf_counter()
        outputs, record = function(argument)
        record = record.numpy()
        key = record.tobytes()
        if key != getattr(self._last, "key", None):
            rows = [row for row in record.tolist() if row[0] != _NOT_RUN]
            self._saw([self._decode(row) for row in rows], time.perf_counter() - start)
            self._last.key = key
        return outputs

    def _decode(self, row):
        trace, names, dtypes, ranks = self._layouts[row[0]]
        leaves, start = [], 1
        for name, dtype, rank in zip(names, dtypes, ranks, strict=True):
            width = _UNKNOWN_RANK_SLOTS if rank is None else rank
            shape = tuple(size for size in row[start : start + width] if size != _NOT_RUN)
            leaves.append((name, shape, dtype))
            start += width
        return trace, leaves

    def _run_one(self, data):
        """In a graph: run the compiled step, and describe the batch as one int64 vector."""
        data = keras.tree.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, data)
        trace = self._compiled.get_concrete_function(data)
        if trace.name not in self._checked:
            if blockers := blocking_ops(trace):
                self._refuse(blockers)
            self._checked.add(trace.name)
        names, tensors = _named_tensors(data, self._names)
        ranks = [x.shape.rank for x in tensors]
        number = self._numbers.setdefault((trace.name, *ranks), len(self._layouts))
        if number == len(self._layouts):
            self._layouts.append((trace.name, names, [x.dtype.name for x in tensors], ranks))
        row = tf.concat([tf.constant([number], tf.int64), *map(_shape_slots, tensors)], axis=0)
        return trace(data), row

    def _iterate(self, iterator):
        outputs, row = self._run_one(iterator.get_next())
        if self._steps == 1:
            return outputs, row[None]
        present = [x for x in tf.nest.flatten(outputs) if x is not None]
        record = tf.concat(
            [row[None], tf.fill((self._steps - 1, tf.size(row)), tf.constant(_NOT_RUN, tf.int64))], axis=0
        )
        record.set_shape((self._steps, row.shape[0]))

        def more(step, _outputs, _record, batch):
            return tf.logical_and(step < self._steps, batch.has_value())

        def another(step, _outputs, record, batch):
            outputs, row = self._run_one(batch.get_value())
            record = tf.tensor_scatter_nd_update(record, [[step]], row[None])
            fetch = step + 1 < self._steps  # a batch fetched beyond the last step would be lost
            batch = tf.cond(fetch, iterator.get_next_as_optional, lambda: batch)
            return step + 1, [x for x in tf.nest.flatten(outputs) if x is not None], record, batch

        start = (tf.constant(1), present, record, iterator.get_next_as_optional())
        _, last, record, _ = tf.while_loop(more, another, start)
        last = iter(last)
        return tf.nest.map_structure(lambda x: None if x is None else next(last), outputs), record

    def _each(self, batches):
        outputs, rows = zip(*map(self._run_one, batches), strict=True)
        if len(outputs) == 1:
            return outputs[0], rows[0][None]
        return keras.tree.map_structure(lambda *parts: _joined(parts), *outputs), tf.stack(rows)


def _named_tensors(data, names: Callable) -> tuple[list[str], list]:
    """The tensors of a batch, ragged and sparse ones taken apart, with their names."""

    def parts(x):
        inner = tf.nest.flatten(x, expand_composites=True)
        return x if len(inner) == 1 else inner

    data = keras.tree.map_structure(parts, data)
    return names(data), [x for x in keras.tree.flatten(data) if x is not None]


def _shape_slots(x):
    shape = tf.shape(x, out_type=tf.int64)
    if x.shape.rank is None:
        shape = tf.pad(shape, [[0, _UNKNOWN_RANK_SLOTS - tf.size(shape)]], constant_values=_NOT_RUN)
        shape.set_shape((_UNKNOWN_RANK_SLOTS,))
    return shape


def _joined(parts):
    return tf.stack(parts) if parts[0].shape.rank == 0 else tf.concat(parts, axis=0)


def _watched(function: Callable, names: Callable, saw: Callable) -> Callable:
    """A function that is not ours, observed from outside: the iterator's specs, or the shapes of the batches.

    Where the spec leaves the batch axis open, a smaller last batch cannot be seen.
    """

    def run(argument):
        start = time.perf_counter()
        if hasattr(argument, "element_spec"):
            batches = [argument.element_spec]
        elif isinstance(argument, (list, tuple)):
            batches = list(argument)
        else:
            batches = list(argument)
            argument = iter(batches)
        outputs = function(argument)
        saw([("", _outside_view(batch, names)) for batch in batches], time.perf_counter() - start)
        return outputs

    return run


def _outside_view(data: Any, names: Callable) -> list[tuple]:
    def view(x):
        if x is None:
            return None
        shape = getattr(x, "shape", ())
        known = not isinstance(shape, tf.TensorShape) or shape.rank is not None
        dtype = getattr(x, "dtype", type(x))
        return tuple(shape) if known else ("...",), getattr(dtype, "name", str(dtype))

    leaves = [view(x) for x in keras.tree.flatten(data) if x is not None]
    return [(name, *leaf) for name, leaf in zip(names(data), leaves, strict=True)]
