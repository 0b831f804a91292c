"""`keras_xla.enable()` for functions that a script decorates: XLA or the plain graph, found out with real calls.

Nobody knows how often a function will be called. So XLA is compiled only when the calls so far have taken so long that
it would have paid off already; then the time lost is never more than a fraction of what the script takes anyway.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from keras_xla.backend import machine
from keras_xla.backend.compile_log import FIRST_CALL, record
from keras_xla.backend.new_shapes import Calls, StepProfile
from keras_xla.backend.signature import Signature, describe, describe_change
from keras_xla.training.decide.cost import HOPED_SHARE_SAVED, estimated_compile
from keras_xla.training.decide.decisions import Decisions, MeasurementKey, Times
from keras_xla.training.decide.policy import DETERMINISTIC, faster_way
from keras_xla.training.reports.journal import Decision, Journal

KIND = "function"
CALLS_BEFORE_A_LOOK, SECONDS_BEFORE_A_LOOK = 10, 0.8  # that a function must have run before it is looked into
MOST_COMPILATIONS = 8  # of one function
SECONDS_TO_COMPILE = 0.05  # and more, that a call takes if it compiles
COMPILES_AGAIN = "it compiled again and again, for arguments of the same shapes"


class FunctionPolicy:
    """Decides for one function: True is XLA wherever it can compile the function, the other choice is `"auto"`.

    `decisions` has what earlier runs measured. The decisions, compilations and times are in `journal`, under the kind
    `"function"`.
    """

    def __init__(self, name: str, jit_compile: bool | str, decisions: Decisions):
        self.name, self.jit_compile, self.journal = name, jit_compile, Journal()
        self._decisions = decisions
        self._last: Signature | None = None
        self._regret = 0.0

    def ran(self, way: str, seconds: float) -> None:
        """Take note of a call, in way `"graph"` or `"xla"`, that neither traced nor compiled anything."""
        self.journal.ran(KIND, way, 1, seconds)

    def worth_tracing(self) -> bool:
        """Whether the function is called often and long enough."""
        tally = self.journal.tallies.get((KIND, "graph"))
        if tally is None:
            return False  # the first call traces, and may create variables
        often = tally.steps >= CALLS_BEFORE_A_LOOK and tally.seconds >= SECONDS_BEFORE_A_LOOK
        return self.jit_compile is True or often

    def decide(self, calls: Calls) -> str:
        """What to do with the call that is to come.

        Returns:
            `"graph"` for good, whatever the arguments, `"this"` for the plain graph with these arguments, `"later"` for
            the plain graph and another question at the next call, `"measure"` for both in turn, or `"xla"`.
        """
        if calls.refusal:
            return self._decided(calls, "graph", calls.refusal)
        if calls.executables >= MOST_COMPILATIONS:
            return self._decided(calls, "this", f"{MOST_COMPILATIONS} compilations for other arguments are enough")
        if self.jit_compile is True:
            return self._decided(calls, "xla", "jit_compile=True")
        if against := _known_loss(calls.facts):
            return self._decided(calls, "graph", against)
        times = self._known(calls)
        if times is None:
            if HOPED_SHARE_SAVED * calls.seconds < estimated_compile(calls.facts):
                return "later"
            calls.known = None  # another function may have been measured meanwhile
            if (times := self._known(calls)) is None:
                return "measure"
        if times.failed:
            return self._decided(calls, "graph", f"xla failed: {times.failed}")
        if times.tried is None or faster_way(times) == "graph":
            return self._decided(calls, "graph", f"{times.source}: XLA is not faster", times)
        if (times.graph - times.tried) * calls.count < times.compile:
            return "later"
        return self._decided(calls, "xla", times.source, times)

    def measured(self, calls: Calls, graph: Sequence[float], first: float, xla: Sequence[float]) -> str:
        """The way of all further calls, `"graph"` or `"xla"`, given the seconds of some calls each way."""
        times = Times(min(graph), "xla", min(xla), first)
        self._remember(calls, times)
        if faster_way(times) == "graph":
            return self._decided(calls, "graph", "measured: XLA is not faster", times, first)
        return self._decided(calls, "xla", "measured", times, first)

    def compiles_too_often(self, calls: Calls, seconds: float) -> bool:
        """Whether XLA seems to compile again and again, as it does where a value becomes a shape."""
        if self.jit_compile is True or seconds < SECONDS_TO_COMPILE:
            return False
        times = self._known(calls)
        if times is None or times.tried is None or seconds < SECONDS_TO_COMPILE + 5 * times.graph:
            return False
        self._regret += seconds - times.graph
        if self._regret < 2 * times.compile:
            return False
        self._remember(calls, replace(times, tried=None, failed=COMPILES_AGAIN, time=time.time()))
        self._decided(calls, "graph", COMPILES_AGAIN)
        return True

    def compiled(self, calls: Calls, seconds: float) -> None:
        """Write it to the compile log."""
        cause = FIRST_CALL if self._last is None else describe_change(self._last, calls.leaves) or "traced again"
        self._last = calls.leaves
        self.journal.compiled(record(self.name, KIND, describe(calls.leaves), cause, seconds))

    def failed(self, calls: Calls | None, reason: str, lasting: bool = True) -> None:
        """Take note that XLA cannot run it, or that the function could not be looked into (no `calls`).

        A failure that is not `lasting` may be none in the next run: a lack of memory may be due to another process.
        """
        if calls is None:
            self.journal.decisions.append(Decision(KIND, "any arguments", "graph", reason))
            return
        if self.jit_compile is not True and lasting:
            self._remember(calls, Times(calls.seconds / max(calls.count, 1), "xla", failed=reason))
        self._decided(calls, "graph", f"xla failed: {reason}")

    def _known(self, calls: Calls) -> Times | None:
        """What was measured before. It is looked up once: a function that waits for XLA is asked about at each call."""
        if calls.known is None:
            calls.known = self._decisions.get(self._key(calls)) or False
        return calls.known or None

    def _remember(self, calls: Calls, times: Times) -> None:
        calls.known = times
        self._decisions.put(self._key(calls), times, self.name, faster_way(times))

    def _key(self, calls: Calls) -> MeasurementKey:
        return MeasurementKey(calls.facts.fingerprint, KIND, describe(calls.leaves), **machine())

    def _decided(self, calls: Calls, way: str, reason: str, times: Times | None = None, spent: float = 0.0) -> str:
        measured: dict[str, float] = {}
        if times is not None and times.tried is not None:
            measured = {"graph": 1e3 * times.graph, "xla": 1e3 * times.tried}
        taken = "graph" if way == "this" else way
        self.journal.decisions.append(Decision(KIND, describe(calls.leaves), taken, reason, measured, spent))
        return way


def _known_loss(facts: StepProfile) -> str:
    """Why XLA is not worth a trial on this device, or there must be none; empty if it may be."""
    if facts.deterministic:
        return DETERMINISTIC
    if facts.tower:
        return f"{facts.tower} convolutions, which XLA is slow at on CPU"
    if facts.loops and facts.device == "CPU":  # those of gradients would have to be traced for it
        return f"{facts.loops} loops, which XLA is slow at on CPU"
    return ""
