"""Functions compiled by XLA on TensorFlow, one executable each, and what in a forward pass cannot be compiled."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_xla.backend.new_shapes import BlockingOp
from keras_xla.backend.tensorflow.graphs.operations import blocking_ops
from keras_xla.backend.tensorflow.stored import keeps_executables, stored
from keras_xla.private.keras.seeds import global_generator
from keras_xla.private.keras.variables import stateless_scope
from keras_xla.private.names import otherwise
from keras_xla.private.tensorflow.graphs import may_be_recorded
from keras_xla.private.tensorflow.xla_flags import keep_nan

to_tensor = tf.convert_to_tensor
without_autograph = tf.autograph.experimental.do_not_convert  # decorates what AutoGraph calls as it is
_blockers = otherwise([])(blocking_ops)  # then XLA itself says what it cannot compile
_recorded = otherwise(True)(may_be_recorded)
_SEEDS = weakref.WeakKeyDictionary[Any, Any]()  # for each generator that a trace draws from


def compile_function(call: Callable, tensors: Sequence[tf.Tensor], refuse: Callable) -> Callable:
    """One executable of `call(tensors)` for tensors of these shapes and dtypes; variables are read and assigned live.

    XLA compiles in its first call. `refuse` is called with the `BlockingOp`s, if there are any, before anything runs;
    it raises.
    """
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]
    trace = _traced(call, specs)
    if blockers := _blockers(trace):
        refuse(blockers)
    if not keeps_executables():
        return _from_global_seeds(trace, lambda tensors: trace(list(tensors)))
    kept = stored(trace)

    def run(tensors):
        # A gradient, or another graph, needs what TensorFlow knows of the trace.
        if tf.executing_eagerly() and not _recorded():
            with contextlib.suppress(tf.errors.OpError):  # which is raised again, with the name of the operation
                return kept(list(tensors))
        return trace(list(tensors))

    return _from_global_seeds(trace, run)


def _traced(call: Callable, specs: list[tf.TensorSpec]) -> Any:
    """The trace of `call(tensors)`. TensorFlow gives the variables that are made in it their values when it ends.

    Should it fail, those of layers that were built in it get them all the same, as they would in plain Keras.
    """
    made: list[tuple[tf.Variable, Any]] = []

    def note(make: Callable, **given: Any) -> tf.Variable:
        variable = make(**given)
        made.append((variable, given.get("initial_value")))
        return variable

    def noted(tensors):
        with tf.variable_creator_scope(note):
            return call(tensors)

    keep_nan()
    try:
        return tf.function(noted, jit_compile=True, autograph=False).get_concrete_function(specs)
    except BaseException:
        for variable, value in made:
            with contextlib.suppress(Exception), tf.init_scope():  # what the function raised is what counts
                if callable(value) and not variable.is_initialized():
                    variable.assign(value())
        raise


def is_weak(x: Any) -> bool:
    """False: no dtype of TensorFlow's gives way to that of another tensor."""
    return False


def runs_python() -> bool:
    """Whether a user has asked for compiled functions to run as Python, to look into them."""
    return tf.config.functions_run_eagerly()


def is_in_trace() -> bool:
    """Whether this thread traces a function, or a `keras.StatelessScope` has other values for variables."""
    return stateless_scope() is not None or not tf.executing_eagerly()


def _from_global_seeds(trace: Any, run: Callable) -> Callable:
    """`run`; draws without a seed are those of the generator that Keras has at each call, not at the time of the trace.

    `keras.utils.set_random_seed` takes another one, whose variable the trace does not know.
    """
    traced = global_generator()
    if traced is None or all(variable is not traced.state.value for variable in trace.variables):
        return run

    lock = _SEEDS.setdefault(traced, threading.RLock())

    def seeded(tensors):
        now = global_generator(make=True)
        if now is None or not tf.executing_eagerly():
            return run(tensors)
        with lock:  # each thread has a generator of its own, and the trace one for all of them
            if now is traced:
                return run(tensors)
            before = tf.identity(traced.state.value)
            traced.state.assign(now.state)
            try:
                return run(tensors)
            finally:
                now.state.assign(traced.state)
                traced.state.assign(before)

    return seeded


def output_shapes(call: Callable, specs: Sequence[tuple[Sequence[int], Any]]) -> list[tuple | None]:
    """The shapes of the list that `call` makes of tensors of these shapes and dtypes; `()` of None in it.

    None stands for a shape, or a size, that is not known before the function runs.
    """
    trace = tf.function(call, autograph=False).get_concrete_function([tf.TensorSpec(*spec) for spec in specs])
    outputs = tf.nest.flatten(trace.structured_outputs)
    return [() if x is None else None if x.shape.rank is None else tuple(x.shape) for x in outputs]


def is_of_trace(x: Any, tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a tensor can leave the trace that has these `tensors`: it is not of a loop or a branch, nor another's."""
    return getattr(x, "graph", None) is tf.compat.v1.get_default_graph()


def forward_blockers(call: Callable, inputs) -> list[BlockingOp]:
    """The operations of `call(inputs)` that XLA cannot compile; `keras.KerasTensor`s may stand for tensors."""

    def traced(batch: Callable):
        specs = tf.nest.map_structure(lambda x: tf.TensorSpec([*batch(x.shape), *x.shape[1:]], x.dtype), inputs)
        return tf.function(call, autograph=False).get_concrete_function(specs)

    try:
        trace = traced(lambda shape: [None] if len(shape) else [])
    except (ValueError, TypeError):  # some models need to know their batch size
        if {tuple(x.shape[:1]) for x in tf.nest.flatten(inputs)} <= {(), (None,)}:
            raise
        trace = traced(lambda shape: shape[:1])
    return _blockers(trace)


def with_autograph(call: Callable):
    """The result of `call()` in the graph under construction, for code whose `if`s and loops test tensors."""
    return tf.function(call)()


def pad(x: Any, widths: Sequence[tuple[int, int]], value: Any) -> tf.Tensor:
    """The tensor with `value` around it; gradients go through."""
    x = tf.convert_to_tensor(x)
    return tf.pad(x, widths, constant_values=tf.constant(np.asarray(value, x.dtype.as_numpy_dtype)))


def cut(x: tf.Tensor, axis: int, size: int) -> tf.Tensor:
    """The first `size` entries along `axis`."""
    return x[(*[slice(None)] * axis, slice(size))]
