"""What a backend's runner says of the batches that it ran."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Execution:
    """Some batches that ran together.

    Attributes:
        outputs: Of the last of them, or of all of them joined along the first axis, as was asked for.
        batches: How many there were.
        way: In which most of them ran: `"graph"`, `"xla"` or `"partial"`.
        settled: Whether nothing was decided, traced or compiled meanwhile, so that the time they took counts.
        wait: Returns when they have run; None if they have.
    """

    outputs: Any
    batches: int
    way: str
    settled: bool
    wait: Callable[[], Any] | None = None
