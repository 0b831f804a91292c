"""Functions compiled by XLA on TensorFlow, one executable each, and what in a forward pass cannot be compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_xla.backend.new_shapes import BlockingOp
from keras_xla.backend.tensorflow.graphs.operations import blocking_ops
from keras_xla.private.names import otherwise

to_tensor = tf.convert_to_tensor
_blockers = otherwise([])(blocking_ops)  # then XLA itself says what it cannot compile


def compile_function(call: Callable, tensors: Sequence[tf.Tensor], refuse: Callable) -> Callable:
    """One executable of `call(tensors)` for tensors of these shapes and dtypes; variables are read and assigned live.

    XLA compiles in its first call. `refuse` is called with the `BlockingOp`s, if there are any, before anything runs;
    it raises.
    """
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]
    trace = tf.function(call, jit_compile=True, autograph=False).get_concrete_function(specs)
    if blockers := _blockers(trace):
        refuse(blockers)
    return lambda tensors: trace(list(tensors))


def forward_blockers(call: Callable, inputs) -> list[BlockingOp]:
    """The operations of `call(inputs)` that XLA cannot compile; `keras.KerasTensor`s may stand for tensors."""
    specs = tf.nest.map_structure(_spec, inputs)
    return _blockers(tf.function(call, autograph=False).get_concrete_function(specs))


def _spec(x):
    return tf.TensorSpec([None, *x.shape[1:]] if len(x.shape) else [], x.dtype)


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
