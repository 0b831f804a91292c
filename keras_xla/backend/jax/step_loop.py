"""Several train or test steps in one executable, which loops over batches that lie behind each other."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

_SLOW_ON_CPU = "conv_general_dilated"  # nine times slower in a loop than outside of it: XLA runs it on one core there


class CannotLoop(Exception):
    """The steps of a model do not fit into a loop, or would be slower there."""


class StepLoop:
    """Runs as many steps as there are batches, at most `capacity`, with one executable for all counts.

    `step(state, batch) -> (logs, state)` is traced once, as Keras' own function traces it; `traces` counts that.
    """

    def __init__(self, step: Callable, capacity: int):
        self._step, self.capacity, self.traces = step, capacity, 0

        def run(state, batches, count):
            return self._loop(state, batches, count)

        run.__name__ = run.__qualname__ = getattr(step, "__name__", "step")  # by which jax tells of it
        self._run = jax.jit(run, donate_argnums=0)

    def __call__(self, state: Any, batches: Sequence[Any]) -> tuple[Any, Any]:
        """The logs of the last step and the state after it; the arrays of `state` are used up.

        `state` is as Keras' trainer has it; all batches are of the same structure, shapes and dtypes. Where it raises
        `CannotLoop`, nothing has run.
        """
        return self._run(state, self._behind_each_other(batches), np.int32(len(batches)))

    def _behind_each_other(self, batches: Sequence[Any]) -> Any:
        """The batches as one, with a new first axis of so many as there may be; what is behind the last is not read."""
        if any(isinstance(x, jax.Array) and _platform(x) != "cpu" for x in jax.tree.leaves(batches[0])):
            missing = self.capacity - len(batches)
            return _stacked((*batches, *[batches[-1]] * missing))

        def stack(*rows):
            rows = [np.asarray(x) for x in rows]
            made = np.empty((self.capacity, *rows[0].shape), rows[0].dtype)
            return np.stack(rows, out=made[: len(rows)]).base

        return jax.tree.map(stack, *batches)

    def _loop(self, state, batches, count):
        if any(x.weak_type for x in jax.tree.leaves(state)):
            raise CannotLoop("numbers of the state have weak types")
        self.traces += 1
        made, (logs, after) = jax.make_jaxpr(self._step, return_shape=True)(state, _at(batches, 0))
        if made.effects:
            raise CannotLoop(f"the step does more than compute: {made.effects}")
        if jax.default_backend() == "cpu" and _has(made.jaxpr, _SLOW_ON_CPU):
            raise CannotLoop("convolutions are slower in a loop on CPU")
        if jax.tree.structure(after) != jax.tree.structure(state) or _types(after) != _types(state):
            raise CannotLoop("the step changes the types of its state")
        step, structure = jaxpr_as_fun(made), jax.tree.structure((logs, after))

        def body(index, carry):
            outputs = step(*jax.tree.leaves((carry[1], _at(batches, index))))
            strong = [jax.lax.convert_element_type(x, x.dtype) for x in outputs]
            return jax.tree.unflatten(structure, strong)

        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), logs)
        return jax.lax.fori_loop(0, count, body, (nothing, state))


@jax.jit
def _stacked(batches):
    return jax.tree.map(lambda *rows: jnp.stack(rows), *batches)


def _at(batches: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), batches)


def _types(x: Any) -> list:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(x)]


def _platform(x: jax.Array) -> str:
    return next(iter(x.devices())).platform


def _has(jaxpr: Jaxpr, primitive: str) -> bool:
    """Whether a program, or one inside of it, has an operation."""
    for equation in jaxpr.eqns:
        inner = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr))
        inside = [getattr(x, "jaxpr", x) for x in inner if isinstance(x, Jaxpr | ClosedJaxpr)]
        if equation.primitive.name == primitive or any(_has(each, primitive) for each in inside):
            return True
    return False
