"""What a backend asks about the calls of a decorated function: in which way shall they run?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from keras_xla.backend.new_shapes import StepProfile


@dataclass
class Calls:
    """The calls of a function with arguments of the same shapes.

    Attributes:
        facts: What the traced function is made of.
        refusal: Why XLA must not run it, in words; empty if it may.
        leaves: `(name, shape, dtype)` of its tensors.
        executables: How many the function has already, for other arguments.
        count: Calls so far, without those that traced.
        seconds: That they took.
    """

    facts: StepProfile
    refusal: str
    leaves: tuple[tuple, ...]
    executables: int = 0
    count: int = 0
    seconds: float = 0.0


class CallPolicy(Protocol):
    """Decides for one decorated function."""

    def ran(self, way: str, seconds: float) -> None:
        """Take note of a call, in way `"graph"` or `"xla"`, that neither traced nor compiled anything."""

    def curious(self) -> bool:
        """Whether the calls so far make it worthwhile to look into the function."""

    def decide(self, calls: Calls) -> str:
        """What to do with the call that is to come.

        Returns:
            `"graph"` for good, whatever the arguments, `"this"` for the plain graph with these arguments, `"later"` for
            the plain graph and another question at the next call, `"measure"` for both in turn, or `"xla"`.
        """

    def measured(self, calls: Calls, graph: Sequence[float], first: float, xla: Sequence[float]) -> str:
        """The way of all further calls, `"graph"` or `"xla"`, given the seconds of some calls each way."""

    def regrets(self, calls: Calls, seconds: float) -> bool:
        """Whether calls through XLA, such as the last one, are so slow that the rest had better run plainly."""

    def compiled(self, calls: Calls, seconds: float) -> None:
        """Take note of a compilation, with the call that it was for."""

    def failed(self, calls: Calls | None, reason: str, lasting: bool = True) -> None:
        """Take note that XLA cannot run it, or that the function could not be looked into (no `calls`).

        Args:
            calls: That it is about.
            reason: Why, in words.
            lasting: Whether the next run would fail, too: a lack of memory may be due to another process.
        """
