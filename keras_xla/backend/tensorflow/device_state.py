"""Arrays that stay on the device between executables, as variables that compiled functions assign in place."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_xla.backend.executable_cache.cache import ExecutableCache
from keras_xla.backend.signature import symbolic
from keras_xla.backend.tensorflow.core import read_weights, xla
from keras_xla.backend.tensorflow.stored import StoredFunction, read_function, stored
from keras_xla.private.names import Gone

# TensorFlow keeps int32 variables in the host's memory, where an executable on a GPU cannot reach them.
_STORED = {tf.int32: tf.int64}
_SHOWN = {stored: shown for shown, stored in _STORED.items()}


def output_spec(fn: Callable, *specs: Any) -> Any:
    """What `fn` makes of tensors, as `keras.KerasTensor`s; nothing is run."""
    given = _map(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), list(specs))
    made = tf.function(fn, autograph=False).get_concrete_function(*given).structured_outputs
    return _map(symbolic, made)


class DeviceState:
    """Named structures of arrays that executables of `jit_on_state` read and change, without a copy.

    One call at a time may use it.

    Args:
        specs: By name, nested structures of `keras.KerasTensor`; all begin as zeros.
    """

    def __init__(self, specs: dict[str, Any]):
        self._variables = _map(_variable, specs)
        self._handles: dict[tuple[str, ...], list[tf.Tensor]] = {}

    @property
    def nbytes(self) -> int:
        """Of all arrays together."""
        return sum(v.dtype.size * v.shape.num_elements() for v in _leaves(self._variables))

    def __getitem__(self, name: str) -> Any:
        return _map(lambda variable: _shown(variable.value()), self._variables[name])

    def assign(self, name: str, values: Any) -> None:
        """Set the arrays called `name` to values of the same structure and shapes."""
        for variable, value in _pairs(self._variables[name], values):
            variable.assign(_stored(value))

    def copy_from(self, other: "DeviceState") -> None:
        """Take over the values of another state of the same structure, none of whose axes is longer."""
        for variable, source in _pairs(self._variables, other._variables):
            if variable.shape == source.shape:
                variable.assign(source)
            else:
                variable[tuple(slice(0, size) for size in source.shape)].assign(source)

    def copy_rows(
        self, name: str, other: "DeviceState", axes: Sequence[int | None], rows: Any, shifts: Any, batch: int
    ) -> None:
        """Take over arrays of another state, whose rows may stand elsewhere and whose slots may be others.

        Args:
            name: Of the arrays.
            other: The state, which stays as it is.
            axes: Of each array, the axis that counts the slots; None for none.
            rows: `[B]` int32, the row of the other state that each of mine becomes.
            shifts: `[B]` int32, by how many slots each moves towards the end. What then stands in a slot that was not
                there is of no meaning.
            batch: Rows of the other state. The first axis is a multiple of it.
        """
        pairs = _pairs(self._variables[name], other._variables[name])
        for (variable, source), axis in zip(pairs, axes, strict=True):
            groups = source.shape[0] // batch
            x = tf.gather(tf.reshape(source, (batch, groups, *source.shape[1:])), rows)  # [B, G, ...]
            if axis is not None:
                which = np.arange(variable.shape[axis])[None] - shifts[:, None]
                x = tf.gather(x, np.clip(which, 0, source.shape[axis] - 1), axis=axis + 1, batch_dims=1)
            variable.assign(tf.reshape(x, variable.shape))

    def put_rows(self, name: str, other: "DeviceState", rows: Any, batch: int) -> None:
        """Take over all rows of the arrays of another state.

        Args:
            name: Of the arrays.
            other: The state, which stays as it is.
            rows: Ints, where each of its rows goes; of those that go to one place they are equal.
            batch: Rows of this state. The first axis is a multiple of it.
        """
        for variable, source in _pairs(self._variables[name], other._variables[name]):
            groups = variable.shape[0] // batch
            where = (np.asarray(rows)[:, None] * groups + np.arange(groups)).reshape(-1)
            variable.scatter_update(tf.IndexedSlices(source, where))

    def handles(self, names: tuple[str, ...]) -> list[tf.Tensor]:
        """Of the variables of these structures, flat: what executables take instead of values."""
        if names not in self._handles:
            self._handles[names] = [variable.handle for name in names for variable in _leaves(self._variables[name])]
        return self._handles[names]

    def structure(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The specs of these structures."""
        variables = {name: self._variables[name] for name in names}
        return _map(lambda v: keras.KerasTensor(tuple(v.shape), _SHOWN.get(v.dtype, v.dtype).name), variables)


class OnState:
    """See `jit_on_state`.

    Args:
        variables: What the function may read.
        names: Of the structures of a state that it works on.
        fn: The function; None if it is `compiled` already.
        compiled: From a list of handles, weights and flat arguments to outputs.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        names: tuple[str, ...],
        fn: Callable | None = None,
        compiled: Callable[[list], Any] | None = None,
    ):
        self._variables, self._names, self._fn, self._compiled = variables, names, fn, compiled

    def __call__(self, state: DeviceState, *args: Any, weights: list[tf.Tensor] | None = None) -> Any:
        weights = read_weights(self._variables) if weights is None else weights
        if self._compiled is None:
            specs = state.structure(self._names)
            function = xla(functools.partial(self._traced, specs))
            self._compiled = _flat(function.get_concrete_function(state.handles(self._names), weights, args))
        return self._compiled([*state.handles(self._names), *weights, *tf.nest.flatten(args)])

    def keep(self, name: str, cache: ExecutableCache) -> bool:
        """Put it into a cache under its name, after its first call; whether it is there now."""
        return isinstance(self._compiled, StoredFunction) and self._compiled.keep(name, cache)

    def _traced(self, specs, handles, weights, args):
        flat = [spec for name in self._names for spec in _leaves(specs[name])]
        before = [_read(spec, handle) for spec, handle in zip(flat, handles, strict=True)]
        with keras.StatelessScope(state_mapping=list(zip(self._variables, weights, strict=True))):
            rest = iter(before)
            values, outputs = self._fn({name: _map(lambda _: next(rest), specs[name]) for name in self._names}, *args)
        after = [value for name in self._names for value in _leaves(values[name])]
        for old, new, handle in zip(before, after, handles, strict=True):
            if new is not old:
                tf.raw_ops.AssignVariableOp(resource=handle, value=_stored(new))
        return outputs


def jit_on_state(fn: Callable, variables: Sequence[keras.Variable], names: tuple[str, ...]) -> OnState:
    """Compile `fn(values, *tensors) -> values, outputs`, which may read `variables`.

    `values` are those called `names` of a `DeviceState`. What `fn` returns unchanged is not written.

    Returns:
        `run(state, *tensors, weights=None) -> outputs`, which leaves the values in the state. One trace, and one
        compilation, serve all states in which these are of equal structure. Weights are what `read_weights` returned;
        by default it is called now.
    """
    return OnState(variables, names, fn)


def read_on_state(
    name: str, cache: ExecutableCache, variables: Sequence[keras.Variable], names: tuple[str, ...]
) -> OnState | None:
    """What `OnState.keep` has put into a cache under this name, not traced again; None if it is not there."""
    compiled = read_function(name, cache)
    return None if compiled is None else OnState(variables, names, compiled=compiled)


def _flat(function: Any) -> Callable[[list], Any]:
    """A concrete function, called with its flat inputs as quickly as TensorFlow lets us."""
    try:
        return stored(function)
    except Gone:
        return lambda inputs: function(*tf.nest.pack_sequence_as(function.structured_input_signature[0], inputs))


def _variable(spec: keras.KerasTensor) -> tf.Variable:
    return tf.Variable(_stored(tf.zeros(spec.shape, spec.dtype)), trainable=False)


def _stored(value: Any) -> tf.Tensor:
    """As it stands in a variable."""
    value = tf.convert_to_tensor(value)
    return tf.cast(value, _STORED[value.dtype]) if value.dtype in _STORED else value


def _shown(value: tf.Tensor) -> tf.Tensor:
    """As executables and callers see it."""
    return tf.cast(value, _SHOWN[value.dtype]) if value.dtype in _SHOWN else value


def _read(spec: keras.KerasTensor, handle: tf.Tensor) -> tf.Tensor:
    dtype = tf.as_dtype(spec.dtype)
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=_STORED.get(dtype, dtype))
    return tf.ensure_shape(_shown(value), spec.shape)


def _pairs(variables: Any, values: Any) -> list[tuple]:
    keras.tree.assert_same_structure(variables, values)
    return list(zip(_leaves(variables), _leaves(values), strict=True))


def _map(fn: Callable, structure: Any) -> Any:
    return keras.tree.map_structure(lambda x: None if x is None else fn(x), structure)


def _leaves(structure: Any) -> list:
    return [x for x in keras.tree.flatten(structure) if x is not None]
