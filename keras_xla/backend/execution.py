"""What a backend's runner says of the batches that it ran."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ONE_STEP, SEVERAL_STEPS = "one step", "several steps"  # what was traced on JAX, for the log


@dataclass(frozen=True)
class Execution:
    """Some batches that ran together."""

    outputs: Any  # of the last of them, or of all of them joined along the first axis, as was asked for
    batches: int
    way: str  # in which most of them ran: `"graph"`, `"xla"` or `"partial"`
    settled: bool  # whether nothing was decided, traced or compiled meanwhile, so that the time they took counts
    wait: Callable[[], Any] | None = None  # returns when they have run; None if they have
    calls_python: bool = False  # from the graph, which may tell Keras to stop: the next one is a batch alone
