"""XLA on the JAX backend."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental
import keras
import numpy as np

from keras_xla.private.jax import compiling_anew as compiling_anew
from keras_xla.private.keras.variables import as_stored

xla = jax.jit  # compiles a function of arrays
# JAX's context managers that set something for one thread, and its name in `jax.config`.
_OF_A_THREAD = {
    "default_device": "jax_default_device",
    "default_matmul_precision": "jax_default_matmul_precision",
    "numpy_dtype_promotion": "jax_numpy_dtype_promotion",
    "debug_nans": "jax_debug_nans",
    "debug_infs": "jax_debug_infs",
    "enable_x64": "jax_enable_x64",
}


def matmul_transposed(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x [..., in]` times `kernel [out, in]`, without carrying out a transpose.

    A kernel `[N, out, in]` is one for each of the `x [N, rows, in]`.
    """
    batch = tuple(range(kernel.ndim - 2))
    return jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (kernel.ndim - 1,)), (batch, batch)))


def matmul_int8(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x [N, in]` times `kernel [out, in]`, both int8: `[N, out]` int32."""
    return jax.lax.dot_general(x, kernel, (((1,), (1,)), ((), ())), preferred_element_type=jax.numpy.int32)


def has_float64() -> bool:
    """Whether there are tensors of float64."""
    return bool(jax.config.jax_enable_x64)


def float_bits(x: jax.Array) -> jax.Array:
    """The bits of float32 values, as int32."""
    return jax.lax.bitcast_convert_type(x, jax.numpy.int32)


def to_device(x: Any) -> jax.Array:
    """The tensor of a NumPy value. Nothing is compiled for it, as `ops.convert_to_tensor` would for each shape."""
    return x if isinstance(x, jax.Array) else jax.device_put(np.asarray(x), may_alias=False)


def taken_over(x: Any, dtype: str) -> jax.Array:
    """The tensor of values that nobody else has."""
    return keras.ops.convert_to_tensor(x, dtype)


def read_weights(variables: Sequence[keras.Variable]) -> list[jax.Array]:
    """The values that variables have in this thread, to be passed on to another: `predict` has a scope of its own."""
    with as_stored():
        return [v.value for v in variables]


def same_weights(variables: Sequence[keras.Variable], weights: list[jax.Array]) -> bool:
    """Whether no variable has been assigned to since `read_weights` gave these values; JAX's arrays never change."""
    return all(now is then for now, then in zip(read_weights(variables), weights, strict=True))


def thread_settings() -> dict[str, Any]:
    """What JAX's context managers have set for this thread, to be passed on to another."""
    return {manager: getattr(jax.config, name) for manager, name in _OF_A_THREAD.items()}


@contextlib.contextmanager
def with_thread_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Within it, this thread has the settings of another."""
    now = thread_settings()
    with contextlib.ExitStack() as stack:
        for manager, value in settings.items():
            if value != now[manager]:
                of = jax if hasattr(jax, manager) else jax.experimental  # where older versions have the newest
                stack.enter_context(getattr(of, manager)(value))
        yield


def wait_for(x: Any) -> None:
    """Return when tensors have been computed; an error that this leads to is raised here."""
    jax.block_until_ready(x)


def share(variable: keras.Variable, source: Any) -> bool:
    """Never: TensorFlow's variables are not jax's."""
    return False


def run_eagerly(fn: Callable, *args):
    """Call `fn` op by op, loops included."""
    with jax.disable_jit():
        return fn(*args)


def outside_of_traces() -> contextlib.AbstractContextManager:
    """As in `backend.tensorflow.core`."""
    return jax.ensure_compile_time_eval()


def trace_once(fn: Callable) -> Callable:
    """`fn(*tensors)`, which a jax transformation calls again and again: it is traced, and lowered, once.

    Outside of a transformation it is called as it is. `fn` may close over abstract values.
    """
    traced = jax.jit(fn)
    return lambda *args: (traced if any(map(is_traced, jax.tree.leaves(args))) else fn)(*args)


def is_traced(x: Any) -> bool:
    """Whether `x` is an abstract value of a jax transformation, or of a `tf.data` pipeline."""
    of_tensorflow = type(x).__module__.partition(".")[0] == "tensorflow"
    return isinstance(x, jax.core.Tracer) or (of_tensorflow and hasattr(x, "graph") and not hasattr(x, "numpy"))


def is_string(x: Any) -> bool:
    """Whether `x` is a backend tensor of strings; jax has none."""
    return False


def host_call(fn: Callable, inputs: Any, outputs: Sequence[tuple[tuple, str]]) -> list[jax.Array]:
    """Unsupported: inside a jax transformation there is no way out to other executables."""
    raise TypeError(
        "Received an abstract value: XLAGenerationLayer compiles itself and on JAX cannot be called inside jax.jit, "
        "grad or vmap, nor in a map of tf.data. Call it, or predict, outside; pass a dataset to layer.generate. Where "
        "Keras traces a model of yours for the shapes of its outputs, give the model a compute_output_spec."
    )


def on_cpu() -> bool:
    """Whether executables run on the CPU."""
    return jax.default_backend() == "cpu"


def machine() -> dict[str, str]:
    """What a measured time holds for, apart from what was run: `"device"`, `"versions"` and `"settings"`."""
    devices = ", ".join(device.device_kind for device in jax.devices())
    versions = f"keras {keras.__version__} jax {jax.__version__}"
    return {"device": devices, "versions": versions, "settings": ""}
