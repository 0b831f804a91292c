"""What a backend asks when batches of new shapes arrive: in which way shall they run?"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from keras_xla.backend.signature import Signature


@dataclass(frozen=True)
class StepProfile:
    """Counts of a traced step, as far as they tell how XLA will do.

    Attributes:
        ops: All operations.
        convolutions: Convolutions, with those of the gradient.
        heavy: Convolutions, matrix products and loops.
        loops: Loops, such as those of recurrent layers.
        random: Operations that draw random numbers.
        blocked: Types of the operations that XLA cannot compile.
        unsafe: Types of operations whose effects a trial could not undo, or that XLA computes otherwise.
        device: Of what type the device is: `"CPU"`, `"GPU"` or `"TPU"`.
        fingerprint: Equal for graphs that cost the same, in every process; another one for all others.
    """

    ops: int
    convolutions: int
    heavy: int
    loops: int
    random: int
    blocked: tuple[str, ...]
    unsafe: tuple[str, ...]
    device: str
    fingerprint: str

    @property
    def tower(self) -> int:
        """Convolutions, on a device where XLA is several times slower at them."""
        return self.convolutions if self.device == "CPU" else 0


@dataclass(frozen=True)
class Timing:
    """Seconds of one way to run a step, measured on a real batch.

    Attributes:
        first: The first run, with tracing and compiling.
        steps: The later ones.
    """

    first: float
    steps: tuple[float, ...]

    @property
    def step(self) -> float:
        """The median of the later runs: XLA that compiles at every other step is not fast."""
        return statistics.median(self.steps)


@dataclass(frozen=True)
class NewShapes:
    """Batches of new shapes, and what there is to know about them.

    Attributes:
        facts: What the step is made of.
        blockers: The `BlockingOp`s in it.
        leaves: The batch's tensors.
        trial: `trial(way, repeats, limit) -> Timing` runs this batch without a trace of it left in the model; raises
            `WayFailed` or `TrialImpossible`. None once the question is answered.
    """

    facts: StepProfile
    blockers: tuple
    leaves: Signature
    trial: Callable[[str, int, float], Timing] | None

    @property
    def shapes(self) -> tuple[tuple, ...]:
        """Those of the batch's tensors."""
        return tuple(tuple(leaf.shape) for leaf in self.leaves)


class WayFailed(Exception):
    """A way to run a step that does not work; the message says why.

    Attributes:
        node: The operation that failed, with the name scopes of the layers that it is in; empty when unknown.
        lasting: Whether it will fail the next time, too: a lack of memory may be due to another process.
    """

    def __init__(self, message: str, node: str = "", lasting: bool = True):
        super().__init__(message)
        self.node, self.lasting = node, lasting


class ShapesRefused(WayFailed):
    """Batches of shapes that the step cannot be traced for: only the plain graph may tell what is wrong with them."""


class TrialImpossible(Exception):
    """A step that cannot be run for a trial now, in whatever way; the message says why."""
