"""The compilations of one step function, each written to the compile log with its cause."""

import threading

from keras_xla.backend.compile_log import FIRST_CALL, record
from keras_xla.backend.execution import ONE_STEP, SEVERAL_STEPS
from keras_xla.backend.signature import Signature, describe, describe_change
from keras_xla.training.reports.journal import ADVICE, MOST_LISTED, Journal
from keras_xla.troubleshooting import warn

STEPS_AT_A_TIME = {ONE_STEP, SEVERAL_STEPS}  # executables on JAX


class Ledger:
    """What one step function has compiled so far; writes what is new to the compile log."""

    def __init__(self, name: str, kind: str, journal: Journal):
        self._name, self._kind, self._journal = name, kind, journal
        again = any(compilation.event.kind == kind for compilation in journal.compilations)
        self._cause = "model recompiled" if again else FIRST_CALL
        self._seen: set[tuple] = set()
        self._last: tuple | None = None
        self._events = 0
        self._lock = threading.Lock()

    def compiled(self, leaves: Signature, seconds: float, way: str) -> None:
        """Take note of a new executable for batches of these tensors."""
        self.saw([(way, leaves)], seconds, compiled=True)

    def saw(self, batches: list[tuple[str, Signature]], seconds: float, compiled: bool = False) -> None:
        """Take note of the batches of one execution, each with the trace that ran it.

        What it compiled shares its seconds, by the clock, equally. Unless each batch is known to have `compiled`, those
        with a new trace or new shapes have.
        """
        new = []
        with self._lock:
            for trace, signature in batches:
                if compiled or (trace, signature) not in self._seen:
                    new.append((signature, self._why(trace, signature)))
                    self._seen.add((trace, signature))
                self._last = signature
        for signature, cause in new:
            event = record(self._name, self._kind, describe(signature), cause, seconds / len(new))
            self._journal.compiled(event)
            self._events += 1
            if self._events == MOST_LISTED + 1:
                warn(
                    f"{self._name} has been compiled {self._events} times, each for batches of other shapes, the last "
                    f"because of {cause}. {ADVICE}"
                )

    def _why(self, trace: str, signature) -> str:
        if self._last is None:
            return self._cause
        others = {other for other, seen in self._seen if seen == signature}
        if trace in STEPS_AT_A_TIME and others == STEPS_AT_A_TIME - {trace}:
            return f"shapes as before, for {trace} at a time"
        if any(signature == seen for _, seen in self._seen):
            return (
                "traced again: shapes as before, now for data whose last batch is smaller, for another structure of "
                "the batch or for other types of the model's state"
            )
        return describe_change(self._last, signature)
