"""What was decided for a model, what was compiled and how its steps ran: the material of every report."""

import time
from dataclasses import dataclass, field, replace

from keras_xla.backend.compile_log import CompileEvent
from keras_xla.training.reports.table import milliseconds

STEP_KINDS = ("train", "test", "predict")
MOST_LISTED = 12  # different batches that are told one by one
MOST_COUNTED = 2**16  # of which there may be more: ragged data have no end of them
ADVICE = "keras_xla.bucket_lengths(data) pads batches to a few lengths."


@dataclass(frozen=True)
class Decision:
    """How batches of some shapes run, and why.

    Attributes:
        kind: `"train"`, `"test"` or `"predict"`.
        shapes: The batch, such as `"x: (32, 784) float32, y: (32,) int64"`.
        way: `"graph"` for what plain Keras does, `"xla"`, or `"partial"`: in parts, of which some run as in plain Keras
            and the others through XLA.
        reason: Why, in words.
        measured: Milliseconds a step, by way; empty if nothing was timed.
        spent: Seconds that the measuring took, compilation included.
        time: When it was decided, in seconds since 1970, as `time.time()` has it.
    """

    kind: str
    shapes: str
    way: str
    reason: str
    measured: dict[str, float] = field(default_factory=dict)
    spent: float = 0.0
    time: float = field(default_factory=time.time)

    def tried(self, event: CompileEvent) -> bool:
        """Whether this compilation is one of the trials for the decision, and so in its seconds already."""
        return event.kind == self.kind and self.time - self.spent <= event.time <= self.time

    def why(self, unit: str) -> str:
        """Such as `"measured (graph 2.00 ms a step, xla 1.00 ms a step) [x: (32, 784) float32]"`."""
        times = ", ".join(f"{way} {milliseconds(ms)} ms a {unit}" for way, ms in self.measured.items())
        return f"{self.reason}{f' ({times})' if times else ''} [{self.shapes}]"


@dataclass
class Tally:
    """Steps of one kind that ran in one way.

    Attributes:
        steps: How many.
        seconds: How long all of them took.
    """

    steps: int = 0
    seconds: float = 0.0

    @property
    def milliseconds(self) -> float:
        """Milliseconds a step, on average; 0 if there was none."""
        return 1e3 * self.seconds / self.steps if self.steps else 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.steps + other.steps, self.seconds + other.seconds)

    def __sub__(self, earlier: "Tally") -> "Tally":
        return Tally(self.steps - earlier.steps, self.seconds - earlier.seconds)


@dataclass(frozen=True)
class Compilation:
    """One compilation of a step, and how steps of that kind ran before and after it.

    Attributes:
        event: The `CompileEvent` of the compile log.
        before: The steps since the compilation before this one, as a `Tally`.
        after: The steps since this one, up to the next, as a `Tally`.
    """

    event: CompileEvent
    before: Tally
    after: Tally


@dataclass(frozen=True)
class Snapshot:
    """What was decided and compiled for a model, and how its steps ran, up to one moment or between two.

    Attributes:
        decisions: Each `Decision`, oldest first.
        compilations: Each `Compilation`, oldest first.
        tallies: A `Tally` by kind and way, such as `("train", "xla")`. Steps that ran for a decision or a compilation
            do not count.
        shapes: How many batches of different shapes there were, by kind.
    """

    decisions: tuple[Decision, ...] = ()
    compilations: tuple[Compilation, ...] = ()
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    shapes: dict[str, int] = field(default_factory=dict)

    @property
    def eventful(self) -> bool:
        """Whether anything was decided or compiled."""
        return bool(self.decisions or self.compilations)

    @property
    def overhead(self) -> float:
        """Seconds that deciding and compiling took, with the steps that ran for it."""
        events = [c.event for c in self.compilations]
        compiling = sum(event.seconds for event in events if not any(d.tried(event) for d in self.decisions))
        return sum(decision.spent for decision in self.decisions) + compiling

    def why(self, compilation: Compilation) -> tuple[str, ...]:
        """The cause; and the batch, where the cause does not tell its shapes."""
        event = compilation.event
        tried = next((decision for decision in self.decisions if decision.tried(event)), None)
        ways = {d.way for d in self.decisions if tried and (d.kind, d.shapes) == (tried.kind, tried.shapes)}
        lost = ways == {"graph"}
        cause = event.cause + (" (for a trial; graph was chosen)" if lost else "")
        return (cause,) if cause.startswith("argument ") else (cause, event.shapes)

    def since(self, earlier: "Snapshot") -> "Snapshot":
        """What has come to the journal after an earlier snapshot of it."""
        tallies = {key: tally - earlier.tallies.get(key, Tally()) for key, tally in self.tallies.items()}
        return Snapshot(
            self.decisions[len(earlier.decisions) :],
            self.compilations[len(earlier.compilations) :],
            {key: tally for key, tally in tallies.items() if tally.steps},
            {kind: count - earlier.shapes.get(kind, 0) for kind, count in self.shapes.items()},
        )


class Journal:
    """The decisions, compilations and step times of one model."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.compilations: list[Compilation] = []
        self.tallies: dict[tuple[str, str], Tally] = {}
        self.shapes: dict[str, int] = {}
        self._decided: dict[str, int] = {}  # how often
        self._counted: set[int] = set()  # their hashes
        self._since_compiled: dict[str, Tally] = {}

    def decided(self, decision: Decision) -> None:
        """Take note of a decision; where hardly two batches are alike, only of the first that run plainly."""
        name, kind = hash((decision.kind, decision.shapes)), decision.kind
        if name not in self._counted and len(self._counted) < MOST_COUNTED:
            self._counted.add(name)
            self.shapes[kind] = self.shapes.get(kind, 0) + 1
        self._decided[kind] = self._decided.get(kind, 0) + 1
        if self._decided[kind] <= MOST_LISTED or decision.way != "graph":
            self.decisions.append(decision)

    def ran(self, kind: str, way: str, steps: int, seconds: float) -> None:
        """Take note of steps that ran."""
        for tally in (self.tallies.setdefault((kind, way), Tally()), self._since_compiled.setdefault(kind, Tally())):
            tally.steps += steps
            tally.seconds += seconds

    def compiled(self, event: CompileEvent) -> None:
        """Take note of a compilation."""
        before = self._since_compiled.get(event.kind, Tally())
        self._since_compiled[event.kind] = Tally()
        self.compilations.append(Compilation(event, before, self._since_compiled[event.kind]))

    def snapshot(self) -> Snapshot:
        """All of it so far; what is noted later does not change it."""
        return Snapshot(
            tuple(self.decisions),
            tuple(Compilation(c.event, replace(c.before), replace(c.after)) for c in self.compilations),
            {key: replace(tally) for key, tally in list(self.tallies.items())},
            dict(self.shapes),
        )
