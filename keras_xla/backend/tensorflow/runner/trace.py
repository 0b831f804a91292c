"""A step traced once, for batches of one structure, and what is in it."""

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.filled_batch import FilledBatch
from keras_xla.backend.new_shapes import StepProfile
from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.graphs.effects import WRITES, Effects
from keras_xla.backend.tensorflow.graphs.fingerprint import fingerprint
from keras_xla.backend.tensorflow.graphs.graph import leaves_of
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes
from keras_xla.backend.tensorflow.graphs.operations import blocking_ops, operations
from keras_xla.backend.tensorflow.machine import on_gpu
from keras_xla.backend.tensorflow.partial.split import CONVOLUTIONS, HEAVY, RANDOM
from keras_xla.private.tensorflow.graphs import captures, is_composite, ops_are_deterministic

_LOOPS = ("While", "StatelessWhile")
_PYTHON = ("PyFunc", "EagerPyFunc", "IteratorGetNext")  # an iterator of the step's own ends when it likes


class Traced:
    """What is in a concrete function."""

    def __init__(self, concrete):
        self.concrete = concrete

    @property
    def changed(self) -> tuple[tf.Variable, ...]:
        """The variables that the step may write."""
        return self._effects.changed

    @functools.cached_property
    def _effects(self) -> Effects:
        return Effects(self.concrete.graph)

    @functools.cached_property
    def exact(self) -> str:
        """Equal for traces that compute the same of the same variables and tensors."""
        read = [id(outer) for outer, _ in captures(self.concrete.graph)]
        return f"{fingerprint(self.concrete, exact=True)} {read}"

    @functools.cached_property
    def calls_python(self) -> bool:
        """Whether it calls functions of Python, each of which may look at the model, or change it; or end the data."""
        return any(kind.startswith(_PYTHON) for kind in self._effects.lasting)

    @functools.cached_property
    def draws_and_writes(self) -> Counter:
        """How often it has each operation that draws random numbers or writes variables."""
        kinds = (op.type for op in operations(self.concrete.graph))
        return Counter(kind for kind in kinds if kind in RANDOM or kind.startswith(WRITES))

    @functools.cached_property
    def blockers(self) -> list:
        """What in it XLA cannot compile."""
        return blocking_ops(self.concrete)

    @functools.cached_property
    def facts(self) -> StepProfile:
        """What it is made of."""
        kinds = Counter(op.type for op in operations(self.concrete.graph))
        start = time.perf_counter()
        found = fingerprint(self.concrete)
        seconds = time.perf_counter() - start

        def count(beginnings):
            return sum(n for kind, n in kinds.items() if kind.startswith(beginnings))

        return StepProfile(
            ops=kinds.total(),
            convolutions=count(CONVOLUTIONS),
            heavy=count(HEAVY),
            loops=count(_LOOPS),
            random=sum(n for kind, n in kinds.items() if kind in RANDOM),
            blocked=tuple(sorted({blocker.op for blocker in self.blockers})),
            unsafe=self._effects.lasting,
            device="GPU" if on_gpu() else "CPU",
            fingerprint=found,
            fingerprint_seconds=seconds,
            deterministic=ops_are_deterministic(),
        )


class Trace(Traced):
    """A step as the plain graph; its batch axis is open where the data leave it open.

    The step takes a batch with the structure `spec` of `tf.TypeSpec`, whose Nones stay Nones, and returns one of
    tensors.

    Args:
        step: What is traced.
        spec: Of the batches.
        runs: How many runs of the step there were so far, whatever trace ran: one number, which others count up.
        closed: See `Runner`.
    """

    def __init__(
        self,
        step: Callable,
        spec: Any,
        runs: list[int] | None = None,
        closed: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ):
        # A user's own step may have more arguments, with defaults, which a concrete function would ask for.
        self.step = tf.autograph.experimental.do_not_convert(lambda data: step(data))
        self.spec = spec
        axes = [x.shape.rank and x.shape[0] for x in leaves_of(spec)]  # None also where the rank is open; 0 without any
        self.closed = closed if None in axes else contextlib.nullcontext
        self.runs = [0] if runs is None else runs
        self._runs_before = self.runs[0]
        self._checks: dict[Shapes, Checks] = {}
        self.function = tf.function(self.step)
        super().__init__(self.function.get_concrete_function(spec))

    def checks(self, shapes: Shapes) -> Checks:
        """What XLA would not check in it, for batches of tensors of these shapes."""
        if shapes not in self._checks:
            specs = zip(shapes, leaves_of(self.spec), strict=True)
            self._checks[shapes] = Checks(self.concrete, [tf.TensorSpec(shape, x.dtype) for shape, x in specs])
        return self._checks[shapes]

    def still_the_same(self) -> bool:
        """Whether the step, traced once more, would be what it was. It is if nothing has run since then."""
        if self.runs[0] == self._runs_before:
            return True
        again = tf.function(self.step).get_concrete_function(self.spec)
        return Traced(again).exact == self.exact

    @property
    def fills(self) -> bool:
        """Whether it takes a `FilledBatch`."""
        return isinstance(self.spec, FilledBatch)


def tensors_of(batch: Any) -> Any:
    """The batch with tensors in place of arrays and numbers, `without_optionals`."""
    return keras.tree.map_structure(
        lambda x: x if x is None or is_composite(x) else tf.convert_to_tensor(x), without_optionals(batch)
    )


def without_optionals(batch: Any) -> Any:
    """The batch with None where Keras' generator adapters put an empty `Optional`."""
    kinds = (tf.experimental.Optional, tf.OptionalSpec)
    return keras.tree.map_structure(lambda x: None if isinstance(x, kinds) else x, batch)
