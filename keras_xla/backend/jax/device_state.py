"""Arrays that stay on the device between executables, donated to each and handed back by it."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np

from keras_xla.backend.executable_cache.cache import ExecutableCache
from keras_xla.backend.jax.core import read_weights, to_device
from keras_xla.backend.jax.stored import get_executable, put_executable
from keras_xla.backend.signature import symbolic
from keras_xla.private.jax import reading


def output_spec(fn: Callable, *specs: Any) -> Any:
    """What `fn` makes of tensors, as `keras.KerasTensor`s; nothing is run."""
    given = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), list(specs))
    return jax.tree.map(symbolic, jax.eval_shape(fn, *given))


class DeviceState:
    """Named structures of arrays that executables of `jit_on_state` read and change, without a copy.

    One call at a time may use it.

    Args:
        specs: By name, nested structures of `keras.KerasTensor`; all begin as zeros.
    """

    def __init__(self, specs: dict[str, Any]):
        leaves, structure = jax.tree.flatten(specs)
        self.values = structure.unflatten(_zeros(tuple((tuple(spec.shape), spec.dtype) for spec in leaves)))

    @property
    def nbytes(self) -> int:
        """Of all arrays together."""
        return sum(x.nbytes for x in jax.tree.leaves(self.values))

    def __getitem__(self, name: str) -> Any:
        # Copies: the arrays themselves are given away in the next call.
        return jax.tree.map(jax.numpy.copy, self.values[name])

    def assign(self, name: str, values: Any) -> None:
        """Set the arrays called `name` to values of the same structure and shapes."""

        def made(old, new):  # in memory of its own: it is given away in the next call
            on_device = isinstance(new, jax.Array)
            new = jax.numpy.array(new, old.dtype) if on_device else to_device(np.asarray(new, old.dtype))
            return new.reshape(old.shape)

        self.values[name] = jax.tree.map(made, self.values[name], values)

    def copy_from(self, other: "DeviceState") -> None:
        """Take over the values of another state of the same structure, none of whose axes is longer."""
        mine, structure = jax.tree.flatten(self.values)
        self.values = {}  # one array after the other is let go of, so that not all are there twice
        for i, theirs in enumerate(structure.flatten_up_to(other.values)):
            mine[i] = jax.lax.dynamic_update_slice(mine[i], theirs, (0,) * theirs.ndim)
        self.values = structure.unflatten(mine)

    def copy_rows(
        self, name: str, other: "DeviceState", axes: Sequence[int | None], rows: Any, shifts: Any, batch: int
    ) -> None:
        """Take over arrays of another state; see `backend.tensorflow.device_state` for the arguments."""
        theirs = jax.tree.leaves(other.values[name])
        mine, structure = jax.tree.flatten(self.values.pop(name))
        theirs = mine if other is self else theirs  # one array after the other is let go of
        for i, axis in zip(range(len(mine)), axes, strict=True):
            slots = axis and mine[i].shape[axis]
            mine[i] = _rows_of(theirs[i], rows, shifts, axis=axis, groups=theirs[i].shape[0] // batch, slots=slots)
        self.values[name] = structure.unflatten(mine)

    def put_rows(self, name: str, other: "DeviceState", rows: Any, batch: int) -> None:
        """Take over all rows of another state; see `backend.tensorflow.device_state` for the arguments."""
        mine, structure = jax.tree.flatten(self.values.pop(name))
        theirs = jax.tree.leaves(other.values[name])
        rows = jax.numpy.asarray(rows)
        made = [_put_rows(x, y, rows, groups=x.shape[0] // batch) for x, y in zip(mine, theirs, strict=True)]
        self.values[name] = structure.unflatten(made)


@functools.partial(jax.jit, static_argnums=0)
def _zeros(specs: tuple[tuple[tuple[int, ...], str], ...]) -> list[jax.Array]:
    """All at once: for each shape by itself, something would be compiled."""
    return [jax.numpy.zeros(shape, dtype) for shape, dtype in specs]


@functools.partial(jax.jit, static_argnames="groups", donate_argnums=0)
def _put_rows(mine, theirs, rows, *, groups):
    where = (rows[:, None] * groups + jax.numpy.arange(groups)).reshape(-1)
    return mine.at[where].set(theirs)


@functools.partial(jax.jit, static_argnames=("axis", "groups", "slots"))
def _rows_of(x, rows, shifts, *, axis, groups, slots):
    x = x.reshape(-1, groups, *x.shape[1:])[rows]  # [B, G, ...]
    if axis is not None:
        which = jax.numpy.arange(slots)[None] - shifts[:, None]
        x = jax.vmap(lambda row, at: jax.numpy.take(row, at, axis=axis, mode="clip"))(x, which)
    return x.reshape(-1, *x.shape[2:])


class OnState:
    """See `jit_on_state`.

    Args:
        variables: What the function may read.
        names: Of the structures of a state that it works on.
        compiled: The function, of weights, those structures and the other arguments.
        source: The cache that it comes from; None if it is compiled in this process.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        names: tuple[str, ...],
        compiled: Callable,
        source: ExecutableCache | None = None,
    ):
        self._variables, self._names, self._compiled, self._source = variables, names, compiled, source
        self._specs: Any = None
        self._was_read = False  # by JAX, from a cache

    def __call__(self, state: DeviceState, *args: Any, weights: list[jax.Array] | None = None) -> Any:
        weights = read_weights(self._variables) if weights is None else weights
        values = {name: state.values.pop(name) for name in self._names}
        if self._specs is None:  # the values are given away in the call
            self._specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (weights, values, args))
            with reading() as read, _weights_may_be_gone(weights):
                values, outputs = self._compiled(weights, values, args)
            self._was_read = bool(read)
        else:
            with _weights_may_be_gone(weights):
                values, outputs = self._compiled(weights, values, args)
        state.values |= values
        return outputs

    def keep(self, name: str, cache: ExecutableCache) -> bool:
        """Put it into a cache under its name, after its first call; whether it is there now."""
        if self._source is not None:
            payload = self._source.get(name)
            return payload is not None and cache.put(name, payload)
        if self._was_read:  # written down again it would lack functions (JAX 0.10, on CPU)
            return False
        return put_executable(self._compiled, self._specs, name, cache)


@contextlib.contextmanager
def _weights_may_be_gone(weights: Sequence[jax.Array]) -> Iterator[None]:
    """Say so in an error, where Keras' own steps have given the memory of the weights away meanwhile."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not any(each.is_deleted() for each in weights):
            raise
        raise RuntimeError(
            "The weights with which a stream began are gone: on JAX, fit, evaluate and predict of Keras give the "
            "memory of a model's weights away. Read the stream to its end before, or close it."
        ) from error


def jit_on_state(fn: Callable, variables: Sequence[keras.Variable], names: tuple[str, ...]) -> OnState:
    """Compile `fn(values, *tensors) -> values, outputs`, which may read `variables`.

    `values` are those called `names` of a `DeviceState`.

    Returns:
        `run(state, *tensors, weights=None) -> outputs`, which leaves the values in the state. One trace, and one
        compilation, serve all states in which these are of equal structure. After an error the state is of no use.
        Weights are what `read_weights` returned; by default it is called now.
    """

    @functools.partial(jax.jit, donate_argnums=1)
    def compiled(weights, values, args):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
            return fn(values, *args)

    return OnState(variables, names, compiled)


def read_on_state(
    name: str, cache: ExecutableCache, variables: Sequence[keras.Variable], names: tuple[str, ...]
) -> OnState | None:
    """What `OnState.keep` has put into a cache under this name, neither traced nor compiled; None if there is none."""
    compiled = get_executable(name, cache)
    return None if compiled is None else OnState(variables, names, compiled, cache)
