"""XLA on the TensorFlow backend."""

import contextlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_xla.backend.host_array import may_hold_a_tensor
from keras_xla.backend.tensorflow.machine import machine as machine
from keras_xla.backend.tensorflow.machine import on_cpu as on_cpu
from keras_xla.private.keras.variables import as_stored, stand_on
from keras_xla.private.names import Gone, otherwise
from keras_xla.private.tensorflow.graphs import call_through_xla
from keras_xla.private.tensorflow.xla_flags import keep_nan

_for_xla: ContextVar[bool] = ContextVar("for_xla", default=False)


def xla(fn: Callable) -> Any:
    """Compile a function of tensors; what `trace_once` made of a part of it, TensorFlow lowers for XLA once."""

    def traced(*args):
        token = _for_xla.set(True)
        try:
            return fn(*args)
        finally:
            _for_xla.reset(token)

    def run(*args):
        keep_nan()
        try:
            return call_through_xla(traced, args)
        except Gone:
            return tf.function(fn, jit_compile=True, autograph=False)(*args)

    return tf.function(run, autograph=False)


def matmul_transposed(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """`x [..., in]` times `kernel [out, in]`, without carrying out a transpose.

    A kernel `[N, out, in]` is one for each of the `x [N, rows, in]`. (`tf.einsum` does the same, but takes TensorFlow
    5 ms to lower for XLA each time.)
    """
    if x.shape.rank == 2 or kernel.shape.rank > 2:
        return tf.matmul(x, kernel, transpose_b=True)
    shape = keras.ops.shape(x)
    flat = tf.matmul(tf.reshape(x, (-1, shape[-1])), kernel, transpose_b=True)
    return tf.reshape(flat, (*shape[:-1], kernel.shape[0]))


def matmul_int8(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """`x [N, in]` times `kernel [out, in]`, both int8: `[N, out]` int32."""
    return tf.matmul(x, kernel, transpose_b=True, output_type=tf.int32)


def has_float64() -> bool:
    """Whether there are tensors of float64."""
    return True


def float_bits(x: tf.Tensor) -> tf.Tensor:
    """The bits of float32 values, as int32."""
    return tf.bitcast(x, tf.int32)


def to_device(x: Any) -> tf.Tensor:
    """The tensor of a NumPy value."""
    return tf.convert_to_tensor(x)


def taken_over(x: Any, dtype: str) -> tf.Tensor:
    """The tensor of values that nobody else has; it stands on the memory of a NumPy array where it can.

    `tf.convert_to_tensor` copies an array twice: 30 ms for 150 MB where this takes 1 ms.
    """
    if on_cpu() and may_hold_a_tensor(x) and x.dtype.name == dtype:
        bits = x.view("uint16") if dtype == "bfloat16" else x  # which DLPack does not have
        if bits.dtype.kind in "iuf":
            tensor = tf.experimental.dlpack.from_dlpack(bits.__dlpack__())
            return tf.bitcast(tensor, dtype) if dtype == "bfloat16" else tensor
    return keras.ops.convert_to_tensor(x, dtype)


@otherwise(False)
def share(variable: keras.Variable, source: Any) -> bool:
    """Let `variable` stand on the memory of the `tf.Variable` `source` from now on, if shape and dtype allow."""
    same = isinstance(source, tf.Variable) and source.dtype == variable.dtype and source.shape == variable.shape
    if same:
        stand_on(variable, source)
    return same


def read_weights(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """The values of variables; nothing is copied, unless one is assigned to while its value is kept."""
    with as_stored():
        return [tf.convert_to_tensor(v.value) for v in variables]


def same_weights(variables: Sequence[keras.Variable], weights: list[tf.Tensor]) -> bool:
    """Whether no variable has been assigned to since `read_weights` gave these values.

    TensorFlow changes a variable in place only where nobody else holds its value. Who kept the weights does, so that
    whatever is assigned from then on stands in memory of its own. The price: after that the old values stay in memory,
    too, until the weights are let go of.
    """
    # Views on a CPU. A GPU's are copies, which never stand where those of then do: there it is never so.
    pairs = ((np.asarray(now), np.asarray(then)) for now, then in zip(read_weights(variables), weights, strict=True))
    return all(now.ctypes.data == then.ctypes.data for now, then in pairs)


def thread_settings() -> None:
    """None: nothing that TensorFlow sets for one thread changes what is computed."""


def with_thread_settings(settings: None) -> contextlib.AbstractContextManager:
    """Changes nothing."""
    return contextlib.nullcontext()


def compiling_anew() -> contextlib.AbstractContextManager:
    """Changes nothing: TensorFlow's executables are told apart by the names of their functions."""
    return contextlib.nullcontext()


def wait_for(x: Any) -> None:
    """Nothing: a call returns when all is computed."""


def run_eagerly(fn: Callable, *args):
    """Call `fn` op by op."""
    return fn(*args)


def outside_of_traces() -> contextlib.AbstractContextManager:
    """Within it, values can be read, also where this thread traces something: garbage is collected anywhere."""
    return tf.init_scope()


def trace_once(fn: Callable) -> Callable:
    """`fn(*tensors)`, of which a graph under construction holds one copy, however often it calls it.

    Outside of a graph it is called as it is. `fn` may close over tensors of the graph.
    """
    # Elsewhere TensorFlow may put the copies where they are called, and optimize what is around them.
    attributes = {"_noinline": True} if _for_xla.get() else None
    traced = tf.function(fn, autograph=False, experimental_attributes=attributes)
    return lambda *args: (traced if tf.inside_function() else fn)(*args)


def is_traced(x: Any) -> bool:
    """Whether `x` is a symbolic tensor of a graph under construction."""
    x = x.flat_values if isinstance(x, tf.RaggedTensor) else x
    return isinstance(x, tf.Tensor) and not hasattr(x, "numpy")


def is_string(x: Any) -> bool:
    """Whether `x` is a backend tensor of strings."""
    return isinstance(x, tf.Tensor) and x.dtype == tf.string


def host_call(fn: Callable, inputs: Any, outputs: Sequence[tuple[tuple, str]]) -> list[tf.Tensor]:
    """Call the Python function `fn` from inside a graph.

    Args:
        fn: From `inputs` as numpy arrays (strings as an object array of bytes, ragged tensors as lists of arrays) to a
            list of arrays, or one.
        inputs: A tensor, or a dict of tensors.
        outputs: `(shape, dtype)` of each result.
    """
    named = inputs if isinstance(inputs, dict) else {"": inputs}
    flat = [part for x in named.values() for part in _parts(x)]

    def run(*arrays):
        rest = iter(arrays)
        values = {name: _whole([next(rest) for _ in _parts(x)]) for name, x in named.items()}
        return fn(values if isinstance(inputs, dict) else values[""])

    results = tf.numpy_function(run, flat, [tf.as_dtype(dtype) for _, dtype in outputs])
    results = results if isinstance(results, (list, tuple)) else [results]
    for result, (shape, _) in zip(results, outputs, strict=True):
        result.set_shape(shape)
    return list(results)


def _parts(x: Any) -> list[tf.Tensor]:
    """A tensor; or the values of a ragged one, and where its rows begin and end."""
    return [x.values, x.row_splits] if isinstance(x, tf.RaggedTensor) else [x]


def _whole(parts: list[np.ndarray]) -> Any:
    """The array, or the rows of a ragged one."""
    return parts[0] if len(parts) == 1 else np.split(parts[0], parts[1][1:-1])
