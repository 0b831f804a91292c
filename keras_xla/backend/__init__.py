"""The part of the work that keras.ops cannot express, once for each Keras backend."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

_BACKENDS = ("tensorflow", "jax")
name: str = keras.backend.backend()
if name not in _BACKENDS:
    raise ImportError(
        f"keras_xla received the Keras backend {name!r}; it expects one of {', '.join(_BACKENDS)}, which have XLA. "
        "Set the environment variable KERAS_BACKEND=tensorflow (or jax) before Keras is imported."
    )

_module = importlib.import_module(f"keras_xla.backend.{name}.core")
is_traced = _module.is_traced
is_string = _module.is_string
host_call = _module.host_call
read_weights = _module.read_weights
same_weights = _module.same_weights
run_eagerly = _module.run_eagerly
trace_once = _module.trace_once
outside_of_traces = _module.outside_of_traces
has_float64 = _module.has_float64
float_bits = _module.float_bits
matmul_transposed = _module.matmul_transposed
matmul_int8 = _module.matmul_int8
share = _module.share
compiling_anew = _module.compiling_anew
wait_for = _module.wait_for
to_device = _module.to_device
taken_over = _module.taken_over
thread_settings = _module.thread_settings
with_thread_settings = _module.with_thread_settings
machine = _module.machine
on_cpu = _module.on_cpu

_stored = importlib.import_module(f"keras_xla.backend.{name}.stored")
compiled_for = _stored.compiled_for
prepare_to_read = _stored.prepare_to_read
require_keeping = _stored.require_keeping

_states = importlib.import_module(f"keras_xla.backend.{name}.device_state")
DeviceState = _states.DeviceState
OnState = _states.OnState
jit_on_state = _states.jit_on_state
read_on_state = _states.read_on_state
output_spec = _states.output_spec


def jit(fn: Callable, variables: Sequence[keras.Variable]) -> Callable:
    """Compile `fn(*tensors)`, which may read `variables`.

    The values are arguments: jax would bake closed-over ones into the executable as constants, and on TensorFlow a call
    takes three times as long to hand a variable to XLA, which it locks, as a tensor.

    Returns:
        `run(*tensors, weights=None)`. Weights are what `read_weights` returned; by default it is called now.
    """

    @_module.xla
    def compiled(weights, args):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            return fn(*args)

    def run(*args, weights: list[Any] | None = None):
        return compiled(read_weights(variables) if weights is None else weights, args)

    return run
