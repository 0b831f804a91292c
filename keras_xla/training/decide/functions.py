"""`keras_xla.enable()` for functions that a script decorates: XLA or the plain graph, found out with real calls.

Nobody knows how often a function will be called. So XLA is compiled only when the calls so far have taken so long that
it would have paid off already; then the time lost is never more than a fraction of what the script takes anyway.
"""

import os
from collections.abc import Sequence

from keras_xla.backend import versions
from keras_xla.backend.compile_log import record
from keras_xla.backend.function_calls import Calls
from keras_xla.backend.new_shapes import StepProfile
from keras_xla.backend.signature import Leaf, Signature, describe, describe_change
from keras_xla.training.decide.decisions import Decisions
from keras_xla.training.decide.policy import BEST, MARGIN, estimated_compile
from keras_xla.training.reports.journal import Decision, Journal

KIND = "function"
FEWEST = 10  # calls before a function is looked into
LEAST = 0.8  # seconds of them
MOST = 8  # compilations of one function
SLOW = 0.05  # seconds, and more, that a call takes if it compiles
AGAIN = "it compiled again and again, for arguments of the same shapes"


class FunctionPolicy:
    """Decides for one function.

    Args:
        name: Of the function.
        jit_compile: True (XLA wherever it can compile the function), or `"auto"`.
        memory: What earlier runs measured.

    Attributes:
        journal: The decisions, compilations and times, under the kind `"function"`.
    """

    def __init__(self, name: str, jit_compile: bool | str, memory: Decisions):
        self.name, self.jit_compile, self.journal = name, jit_compile, Journal()
        self._memory = memory
        self._last: Signature | None = None
        self._regret = 0.0

    def ran(self, way: str, seconds: float) -> None:
        """Take note of a call."""
        self.journal.ran(KIND, way, 1, seconds)

    def curious(self) -> bool:
        """Whether the function is called often and long enough."""
        tally = self.journal.tallies.get((KIND, "graph"))
        if tally is None:
            return False  # the first call traces, and may create variables
        return self.jit_compile is True or (tally.steps >= FEWEST and tally.seconds >= LEAST)

    def decide(self, calls: Calls) -> str:
        """See `keras_xla.backend.function_calls.CallPolicy`."""
        if calls.refusal:
            return self._decided(calls, "graph", calls.refusal)
        if calls.executables >= MOST:
            return self._decided(calls, "this", f"{MOST} compilations for other arguments are enough")
        if self.jit_compile is True:
            return self._decided(calls, "xla", "jit_compile=True")
        if against := _known_loss(calls.facts):
            return self._decided(calls, "graph", against)
        times = self._memory.get(self._key(calls))
        if times is None:
            worth = (1 - BEST) * calls.seconds >= estimated_compile(calls.facts)
            return "measure" if worth else "later"
        if "failed" in times:
            return self._decided(calls, "graph", f"xla failed: {times['failed']}")
        if times["xla"] > MARGIN * times["graph"]:
            return self._decided(calls, "graph", "measured in an earlier run: XLA is not faster", times)
        if (times["graph"] - times["xla"]) * calls.count < times["compile"]:
            return "later"
        return self._decided(calls, "xla", "measured in an earlier run", times)

    def measured(self, calls: Calls, graph: Sequence[float], first: float, xla: Sequence[float]) -> str:
        """The faster way."""
        times = {"graph": min(graph), "xla": min(xla), "compile": first}
        self._memory.put(self._key(calls), times)
        if times["xla"] > MARGIN * times["graph"]:
            return self._decided(calls, "graph", "measured: XLA is not faster", times, first)
        return self._decided(calls, "xla", "measured", times, first)

    def regrets(self, calls: Calls, seconds: float) -> bool:
        """Whether XLA seems to compile again and again, as it does where a value becomes a shape."""
        times = self._memory.get(self._key(calls)) if self.jit_compile is not True and seconds > SLOW else None
        if times is None or "xla" not in times or seconds < SLOW + 5 * times["graph"]:
            return False
        self._regret += seconds - times["graph"]
        if self._regret < 2 * times["compile"]:
            return False
        self._memory.put(self._key(calls), {"failed": AGAIN})
        return self._decided(calls, "graph", AGAIN) == "graph"

    def compiled(self, calls: Calls, seconds: float) -> None:
        """Write it to the compile log."""
        signature = tuple(Leaf(*leaf) for leaf in calls.leaves)
        cause = "first call" if self._last is None else describe_change(self._last, signature) or "traced again"
        self._last = signature
        self.journal.compiled(record(self.name, KIND, describe(signature), cause, seconds))

    def failed(self, calls: Calls | None, reason: str) -> None:
        """Take note that it runs plainly."""
        if calls is None:
            self.journal.decisions.append(Decision(KIND, "any arguments", "graph", reason))
            return
        if self.jit_compile is not True:
            self._memory.put(self._key(calls), {"failed": reason})
        self._decided(calls, "graph", f"xla failed: {reason}")

    def _key(self, calls: Calls) -> str:
        shapes = describe(tuple(Leaf(*leaf) for leaf in calls.leaves))
        device = f"{calls.facts.device} {os.cpu_count()}"
        return f"{calls.facts.fingerprint} {KIND} [{shapes}] {device} {versions()}"

    def _decided(self, calls: Calls, way: str, reason: str, times: dict | None = None, spent: float = 0.0) -> str:
        shapes = describe(tuple(Leaf(*leaf) for leaf in calls.leaves))
        measured = {name: 1e3 * times[name] for name in ("graph", "xla") if name in times} if times else {}
        taken = "graph" if way == "this" else way
        self.journal.decisions.append(Decision(KIND, shapes, taken, reason, measured, spent))
        return way


def _known_loss(facts: StepProfile) -> str:
    """Why XLA is not worth a trial on this device; empty if it may be."""
    if facts.tower:
        return f"{facts.tower} convolutions, which XLA is slow at on CPU"
    if facts.loops and facts.device == "CPU":  # those of gradients would have to be traced for it
        return f"{facts.loops} loops, which XLA is slow at on CPU"
    return ""
