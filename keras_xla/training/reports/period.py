"""One epoch of `fit`, or one call of `evaluate` or `predict`: how long it took, and what happened in it."""

import sys
import time
from dataclasses import dataclass
from typing import Any

from keras_xla.training.reports.journal import STEP_KINDS, Journal, Snapshot, Tally
from keras_xla.training.reports.model_report import snapshot_dict
from keras_xla.training.reports.table import hanging, milliseconds

_MIB = 2**20


@dataclass(frozen=True)
class Period:
    """One epoch of `fit`, or one call of `evaluate` or `predict`, as `CompileReport` saw it.

    Attributes:
        call: `"fit"`, `"evaluate"` or `"predict"`.
        number: The number of the epoch, or of the call; the first is 1.
        seconds: How long it took by the clock, with the data, the validation and what other callbacks did before the
            end.
        validation: How many of these seconds validation took.
        steps: How many steps it had: of training in an epoch, or of the call. None if that is not known.
        history: What was decided and compiled, and the steps that ran: a `Snapshot`.
        peak_memory: The most memory that the process has had until then, in MiB. None where the system does not tell.
    """

    call: str
    number: int
    seconds: float
    validation: float
    steps: int | None
    history: Snapshot
    peak_memory: float | None

    @property
    def milliseconds(self) -> float | None:
        """Milliseconds a step by the clock, everything included but validation; None if the steps are not known."""
        return 1e3 * (self.seconds - self.validation) / self.steps if self.steps else None

    def scalars(self) -> dict[str, float]:
        """The numbers that `CompileReport` writes for TensorBoard's curves, by their tags."""
        values = {
            f"{self.call}/seconds": self.seconds,
            f"{self.call}/overhead_seconds": self.history.overhead,
            f"{self.call}/compilations": len(self.history.compilations),
            f"{self.call}/clock_ms_per_step": self.milliseconds,
            "peak_memory_mib": self.peak_memory,
        }
        for kind in STEP_KINDS:
            tallies = [tally for (other, _), tally in self.history.tallies.items() if other == kind]
            if tallies:
                values[f"{kind}/ms_per_step"] = sum(tallies, Tally()).milliseconds
        return {tag: value for tag, value in values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """All of it as dictionaries, lists, strings and numbers, ready for JSON."""
        return {
            "call": self.call,
            "number": self.number,
            "seconds": self.seconds,
            "validation_seconds": self.validation,
            "steps": self.steps,
            "clock_ms_per_step": self.milliseconds,
            "overhead_seconds": self.history.overhead,
            "peak_memory_mib": self.peak_memory,
            **snapshot_dict(self.history),
        }

    def summary(self, name: str) -> str:
        """One sentence about it, which begins with `name`."""
        facts = [f"{self.seconds:.2f} s"]
        if self.history.overhead >= 0.005:
            facts[0] += f", {self.history.overhead:.2f} s of it deciding and compiling"
        for (kind, way), tally in self.history.tallies.items():
            facts.append(f"{kind} {milliseconds(tally.milliseconds)} ms a step ({way})")
        if not self.history.tallies and self.milliseconds is not None:
            facts.append(f"{milliseconds(self.milliseconds)} ms a step by the clock")
        peak = "not known on this system" if self.peak_memory is None else f"{self.peak_memory:.0f} MiB"
        facts.append(f"peak memory {peak}")
        return hanging("keras_xla: ", f"{name}: {'; '.join(facts)}")

    def events(self) -> list[str]:
        """What was decided and compiled, as a text for each."""
        lines = []
        for d in self.history.decisions:
            spent = f" in {d.spent:.2f} s" if d.measured else ""
            lines.append(hanging(f"  decided  {d.kind} {d.way}{spent}: ", d.why("step")))
        for c in self.history.compilations:
            before = f" ({milliseconds(c.before.milliseconds)} ms a step before)" if c.before.steps else ""
            cause, *batch = self.history.why(c)
            text = f"{cause}{before}{f' [{batch[0]}]' if batch else ''}"
            lines.append(hanging(f"  compiled {c.event.kind} in {c.event.seconds:.2f} s: ", text))
        return lines


class Stretch:
    """A period that goes on."""

    def __init__(self, journal: Journal):
        self._journal, self._before, self._begun = journal, journal.snapshot(), time.perf_counter()
        self._validation, self._validation_begun = 0.0, 0.0

    def begin_validation(self) -> None:
        """Training is over for now."""
        self._validation_begun = time.perf_counter()

    def end_validation(self) -> None:
        """Validation is over."""
        self._validation += time.perf_counter() - self._validation_begun

    def end(self, call: str, number: int, steps: int | None = None) -> Period:
        """What there was between the beginning and now; see `Period`."""
        seconds = time.perf_counter() - self._begun
        history = self._journal.snapshot().since(self._before)
        return Period(call, number, seconds, self._validation, steps, history, peak_memory())


def peak_memory() -> float | None:
    """The most memory that this process has had so far, in MiB; None where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MIB if sys.platform == "darwin" else peak * 1024 / _MIB
