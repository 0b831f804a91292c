"""What was decided for a model and how its steps ran: the material of every report."""

from dataclasses import dataclass, field

KINDS = ("train", "test", "predict")


@dataclass(frozen=True)
class Decision:
    """How batches of some shapes run, and why.

    Attributes:
        kind: `"train"`, `"test"` or `"predict"`.
        shapes: The batch, as `"x: (32, 784) float32, y: (32,) int64"`.
        way: `"graph"` (what plain Keras does), `"xla"`, or `"partial"` (XLA, with some operations in front of it).
        reason: Why, in words.
        measured: Milliseconds a step, by way; empty if nothing was timed.
        spent: Seconds that the measuring took, compilation included.
    """

    kind: str
    shapes: str
    way: str
    reason: str
    measured: dict[str, float] = field(default_factory=dict)
    spent: float = 0.0

    def __str__(self):
        times = ", ".join(f"{way} {ms:.3g} ms" for way, ms in self.measured.items())
        return f"{self.kind:7} {self.way:7} [{self.shapes}] {self.reason}" + (f" ({times} a step)" if times else "")


@dataclass
class Tally:
    """Steps of one kind that ran in one way."""

    steps: int = 0
    seconds: float = 0.0

    @property
    def milliseconds(self) -> float:
        """A step, on average."""
        return 1e3 * self.seconds / self.steps if self.steps else 0.0


class Journal:
    """The decisions and step times of one model."""

    def __init__(self):
        self.decisions: list[Decision] = []
        self.tallies: dict[tuple[str, str], Tally] = {}

    def ran(self, kind: str, way: str, steps: int, seconds: float) -> None:
        """Take note of steps that ran."""
        tally = self.tallies.setdefault((kind, way), Tally())
        tally.steps += steps
        tally.seconds += seconds

    def __str__(self):
        if not self.decisions:
            return "nothing has run yet: the choice is made at the first batch of fit, evaluate or predict"
        lines = [str(decision) for decision in self.decisions]
        for (kind, way), tally in self.tallies.items():
            lines.append(f"{kind:7} {way:7} ran {tally.steps} steps of {tally.milliseconds:.3g} ms on average")
        return "\n".join(lines)
