"""Functions compiled by XLA on JAX, one executable each, with Keras variables as arguments."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_xla.backend.new_shapes import BlockingOp
from keras_xla.private.jax import trace_of, traces
from keras_xla.private.keras.variables import as_stored, stateless_scope

_ASSIGNS = threading.RLock()  # between reading variables and assigning what was made of them


class _Discovery(keras.StatelessScope):
    """Notes which variables are read and which are assigned inside it.

    `around` is the scope that the function was called in, or None: there Keras may have taken the variables' own values
    away, as in a step that JAX does not compile.
    """

    def __init__(self, around: keras.StatelessScope | None) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self._around = around
        self.used: dict[int, keras.Variable] = {}
        self.assigned: dict[int, keras.Variable] = {}
        self._asked: set[int] = set()

    def get_current_value(self, variable):
        self.used[id(variable)] = variable
        value = super().get_current_value(variable)
        if value is None and self._around is not None:
            value = self._around.get_current_value(variable)
        if value is not None or id(variable) in self._asked:
            return value
        self._asked.add(id(variable))  # the variable asks here for its value, and takes its own if there is none
        try:
            return variable.value  # which a regularizer needs
        finally:
            self._asked.remove(id(variable))

    def add_update(self, update):
        self.used[id(update[0])] = self.assigned[id(update[0])] = update[0]
        super().add_update(update)


def compile_function(call: Callable, tensors: Sequence[jax.Array], refuse: Callable) -> Callable:
    """One executable of `call(tensors)` for tensors of these shapes and dtypes; variables are read and assigned live.

    jax would bake the values of closed-over variables into the executable, so an abstract run finds them first; then
    their values are arguments, and the new ones are results that are assigned after each call. XLA compiles in the
    first call. `refuse` is not used: what jax can trace, XLA can compile.
    """
    discovery = _Discovery(stateless_scope())

    def abstract(tensors):
        with discovery:
            call(tensors)

    # Layers that are built inside get their variables when the outer scope ends, outside of the abstract run.
    with keras.StatelessScope():
        jax.eval_shape(abstract, list(tensors))
    variables, assigned = list(discovery.used.values()), list(discovery.assigned.values())

    @jax.jit
    def compiled(values, tensors):
        with keras.StatelessScope(collect_losses=True, initialize_variables=False) as scope:
            for update in zip(variables, values, strict=True):  # a mapping that is given to the scope gets cast
                scope.add_update(update)
            outputs = call(tensors)
        return outputs, [scope.get_current_value(variable) for variable in assigned]

    def run(tensors):
        # Two functions may assign the same variable, such as the state of a seed generator.
        with _ASSIGNS if assigned else contextlib.nullcontext():
            with as_stored():  # in the dtypes of their own, whatever a layer around the call reads them in
                values = [_strong(variable.value) for variable in variables]
            outputs, updates = compiled(values, list(tensors))
            for variable, value in zip(assigned, updates, strict=True):
                variable.assign(value)
        return outputs

    return run


def output_shapes(call: Callable, specs: Sequence[tuple[Sequence[int], Any]]) -> list[tuple | None]:
    """The shapes of the list that `call` makes of tensors of these shapes and dtypes; `()` of None in it."""
    around = stateless_scope()

    def abstract(tensors):
        with _Discovery(around):
            return call(tensors)

    with keras.StatelessScope():  # as above, for layers that are built for these shapes alone
        made = jax.eval_shape(abstract, [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in specs])
    return [() if x is None else tuple(x.shape) for x in made]


def _strong(x: jax.Array) -> jax.Array:
    """Without jax's weak type, which a variable made of a Python number has until it is assigned."""
    return jnp.asarray(x, dtype=x.dtype) if is_weak(x) else x


def is_weak(x: Any) -> bool:
    """Whether the dtype of an array gives way to that of another one, as that of a Python number does."""
    return getattr(x, "weak_type", False)


def is_of_trace(x: Any, tensors: Sequence[jax.Array]) -> bool:
    """Whether an array can leave the trace that has these `tensors`: it is not of a loop or a branch."""
    return trace_of(x) is None or not tensors or any(trace_of(x) is trace_of(tensor) for tensor in tensors)


def forward_blockers(call: Callable, inputs) -> list[BlockingOp]:
    """Nothing: what jax can trace, XLA can compile."""
    return []


def with_autograph(call: Callable):
    """The result of `call()`; jax has no such conversion."""
    return call()


def without_autograph(function: Callable) -> Callable:
    """The function; jax converts none."""
    return function


def runs_python() -> bool:
    """Whether a user has asked for compiled functions to run as Python, to look into them."""
    return bool(jax.config.jax_disable_jit)


def is_in_trace() -> bool:
    """Whether this thread traces a function. A compiled one gets the values that a `keras.StatelessScope` has."""
    return traces()


def to_tensor(x) -> jax.Array:
    """The array on the device. One whose dtype is weak stays so.

    An array of NumPy is copied: on a CPU jax would share its memory, and run after the caller has changed it.
    """
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):  # keys of jax.random, which have no other dtype
        return x
    if is_weak(x):
        return jnp.asarray(x)
    x = x.copy() if isinstance(x, np.ndarray) else x
    return jnp.asarray(x, dtype=jax.dtypes.canonicalize_dtype(x.dtype))


def pad(x: Any, widths: Sequence[tuple[int, int]], value: Any) -> np.ndarray | jax.Array:
    """The array with `value` around it, through numpy: jax would compile a kernel for every size."""
    if is_weak(x):  # which NumPy does not know
        return jnp.pad(x, widths, constant_values=value)
    x = np.asarray(x)
    return np.pad(x, widths, constant_values=np.asarray(value, dtype=x.dtype))


def cut(x: jax.Array, axis: int, size: int) -> jax.Array:
    """The first `size` entries along `axis`, through numpy: jax would compile a kernel for every size."""
    part = (*[slice(None)] * axis, slice(size))
    return x[part] if isinstance(x, jax.core.Tracer) else jax.device_put(np.array(np.asarray(x)[part]))
