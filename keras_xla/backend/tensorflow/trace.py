"""A step traced once, for batches of one structure, and what is in it."""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.filled_batch import FilledBatch
from keras_xla.backend.new_shapes import StepProfile
from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.graph import leaves_of
from keras_xla.backend.tensorflow.last_batch import Shapes
from keras_xla.backend.tensorflow.operations import blocking_ops, operations
from keras_xla.backend.tensorflow.partial.split import CONVOLUTIONS, HEAVY, RANDOM

_LOOPS = ("While", "StatelessWhile")
# Random numbers from a kernel's own state, Python and output; a list that grows, which XLA gives a wrong shape.
_UNSAFE = ("Random", "TruncatedNormal", "Multinomial", "Rng", "PyFunc", "EagerPyFunc", "Print", "Queue", "WriteSummary")
_UNSAFE += ("LookupTableInsert", "LookupTableImport", "MutableHashTable", "TensorListResize")
_READ = ("ResourceGather",)  # of the operations on variables that are not called Assign... or ReadVariableOp


class Traced:
    """What is in a concrete function.

    Args:
        concrete: As `get_concrete_function` gives it.
    """

    def __init__(self, concrete):
        self.concrete = concrete

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """Every variable that the step reads or changes."""
        return self.concrete.graph.variables

    @functools.cached_property
    def changed(self) -> tuple[tf.Variable, ...]:
        """The variables, if the step changes any: which one is not looked for."""
        kinds = {op.type for op in operations(self.concrete.graph)}
        writes = any(kind.startswith(("Assign", "Resource")) and not kind.startswith(_READ) for kind in kinds)
        return tuple(self.variables) if writes else ()

    @functools.cached_property
    def blockers(self) -> list:
        """What in it XLA cannot compile."""
        return blocking_ops(self.concrete)

    @functools.cached_property
    def facts(self) -> StepProfile:
        """What it is made of."""
        kinds = Counter(op.type for op in operations(self.concrete.graph))

        def count(beginnings):
            return sum(n for kind, n in kinds.items() if kind.startswith(beginnings))

        shapes = [f"{x.dtype.name}{x.shape}" for x in self.concrete.inputs]
        told = repr((sorted(kinds.items()), shapes)).encode()
        return StepProfile(
            ops=kinds.total(),
            convolutions=count(CONVOLUTIONS),
            heavy=count(HEAVY),
            loops=count(_LOOPS),
            random=sum(n for kind, n in kinds.items() if kind in RANDOM),
            blocked=tuple(sorted({blocker.op for blocker in self.blockers})),
            unsafe=tuple(sorted(kind for kind in kinds if kind.startswith(_UNSAFE))),
            device="GPU" if tf.config.list_physical_devices("GPU") else "CPU",
            fingerprint=hashlib.sha256(told).hexdigest()[:16],
        )


class Trace(Traced):
    """A step as the plain graph; its batch axis is open where the data leave it open.

    Args:
        step: Takes a batch, returns a structure of tensors.
        spec: The batch's structure of `tf.TypeSpec`; Nones stay Nones.
    """

    def __init__(self, step: Callable, spec: Any):
        self.step = tf.autograph.experimental.do_not_convert(step)
        self.spec = spec
        self._checks: dict[Shapes, Checks] = {}
        self.function = tf.function(self.step)
        super().__init__(self.function.get_concrete_function(spec))

    def checks(self, shapes: Shapes) -> Checks:
        """What XLA would not check in it, for batches of tensors of these shapes."""
        if shapes not in self._checks:
            specs = zip(shapes, leaves_of(self.spec), strict=True)
            self._checks[shapes] = Checks(self.concrete, [tf.TensorSpec(shape, x.dtype) for shape, x in specs])
        return self._checks[shapes]

    @property
    def fills(self) -> bool:
        """Whether it takes a `FilledBatch`."""
        return isinstance(self.spec, FilledBatch)


def without_optionals(batch: Any) -> Any:
    """The batch with None where Keras' generator adapters put an empty `Optional`."""
    kinds = (tf.experimental.Optional, tf.OptionalSpec)
    return keras.tree.map_structure(lambda x: None if isinstance(x, kinds) else x, batch)
