"""What a backend asks when batches of new shapes arrive, or a function is called: in which way shall they run?"""

import statistics
from dataclasses import dataclass
from typing import Any

from keras_xla.backend.signature import Signature


@dataclass(frozen=True)
class BlockingOp:
    """One operation without an XLA kernel."""

    op: str  # its type (`"StringUpper"`), or `"string input NAME"` for an argument of strings
    name: str  # its full name, with the name scopes of the layers that it is in
    where: str  # `file:line` of the user's code that made it; empty when unknown


@dataclass(frozen=True)
class StepProfile:
    """Counts of a traced step, as far as they tell how XLA will do."""

    ops: int
    convolutions: int  # with those of the gradient
    heavy: int  # convolutions, matrix products and loops
    loops: int  # such as those of recurrent layers
    random: int  # operations that draw random numbers
    blocked: tuple[str, ...]  # types of the operations that XLA cannot compile
    unsafe: tuple[str, ...]  # types of those whose effects a trial could not undo, or that XLA computes otherwise
    device: str  # `"CPU"`, `"GPU"` or `"TPU"`
    fingerprint: str  # equal for graphs that cost the same, in every process; another one for all others
    fingerprint_seconds: float  # that it took to make it, which tells how fast this machine is at the moment
    deterministic: bool = False  # whether every run has to give the same bits: a choice by the clock would not

    @property
    def tower(self) -> int:
        """Convolutions, on a device where XLA is several times slower at them."""
        return self.convolutions if self.device == "CPU" else 0


@dataclass(frozen=True)
class Timing:
    """Seconds of one way to run a step, measured on a real batch."""

    first: float  # the first run, with tracing and compiling
    steps: tuple[float, ...]  # the later ones

    @property
    def step(self) -> float:
        """The median of the later runs: XLA that compiles at every other step is not fast."""
        return statistics.median(self.steps)


@dataclass(frozen=True)
class NewShapes:
    """Batches of new shapes, and what there is to know about them.

    `trial(way, repeats, limit)` runs this batch without a trace of it left in the model; it raises `WayFailed` or
    `TrialImpossible`.
    """

    facts: StepProfile
    blockers: tuple[BlockingOp, ...]
    leaves: Signature  # the batch's tensors
    trial: Any  # `Callable[[str, int, float], Timing]`; None once the question is answered

    @property
    def shapes(self) -> tuple[tuple, ...]:
        """Those of the batch's tensors."""
        return tuple(tuple(leaf.shape or ()) for leaf in self.leaves)


@dataclass
class Calls:
    """The calls of a function with arguments of the same shapes, about which `FunctionPolicy` is asked."""

    facts: StepProfile
    refusal: str  # why XLA must not run it, in words; empty if it may
    leaves: Signature
    executables: int = 0  # that the function has already, for other arguments
    count: int = 0  # so far, without those that traced
    seconds: float = 0.0  # that these took
    known: Any = None  # what was measured before; None until somebody has looked that up, False for nothing


class WayFailed(Exception):
    """A way to run a step that does not work; the message says why.

    `node` is the operation that failed, with the name scopes of the layers that it is in; empty when unknown. What is
    not `lasting` may work the next time: a lack of memory may be due to another process.
    """

    def __init__(self, message: str, node: str = "", lasting: bool = True):
        super().__init__(message)
        self.node, self.lasting = node, lasting


class ShapesRefused(WayFailed):
    """Batches of shapes that the step cannot be traced for: only the plain graph may tell what is wrong with them."""


class TrialImpossible(Exception):
    """A step that cannot be run for a trial now, in whatever way; the message says why."""
