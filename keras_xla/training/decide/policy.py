"""`jit_compile="auto"`: XLA, part of it, or the plain graph, whichever is faster, found out without wasting time.

The plain graph's time is measured first. XLA is tried where the kind of model promises a gain, the steps still to come
can repay the compilation, and no earlier run has answered already. Trials are undone, so that the data, the weights and
the seeds are those of a run that tried nothing.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import keras

from keras_xla.backend import versions
from keras_xla.backend.new_shapes import NewShapes, StepProfile, Timing, WayFailed
from keras_xla.backend.signature import Leaf, describe
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.diagnosis.explain import place_of, refuse_ops
from keras_xla.training.decide.decisions import Decisions
from keras_xla.training.decide.rare_shapes import RareShapes
from keras_xla.training.reports.journal import Decision, Journal
from keras_xla.training.session import Session

UNKNOWN_STEPS = 200  # of a pass over data that does not tell its length
MARGIN = 0.97  # XLA has to take less of the plain graph's time than this
BEST = 0.7  # what of the plain graph's time XLA may hope to take, of a step without convolutions
FEWEST = 0.25  # what part of the gain may be hoped for where nearly all are convolutions
REPEATS, LIMIT = 4, 0.25  # timed runs of a trial, and the seconds after which no further one starts
UNCLEAR = 1.5  # within which factor of what a compilation costs the gain hoped for has to be timed better
AGAIN, CLOSE, WORTH = 8, 0.8, 0.02  # more rounds of trials while ratios are close and seconds few beside those to come
NOISE, LATER = 2.5, 0.1  # a loss within that factor is measured again after that part of the steps to come


@dataclass
class Policy:
    """Decides for one kind of step of one model.

    Args:
        kind: `"train"`, `"test"` or `"predict"`.
        jit_compile: True (XLA or an error), or `"auto"`.
        memory: What earlier runs measured.
        journal: Takes the decisions down.
        pace: Gives the `Session` of the call that is going on, or None.
    """

    model: keras.Model
    kind: str
    jit_compile: bool | str
    memory: Decisions
    journal: Journal
    pace: Callable[[], Session | None]
    _answered: Session | None = None
    _again_after: float = math.inf
    _others: RareShapes = field(default_factory=RareShapes)
    _doubts: dict[tuple, float] = field(default_factory=dict)  # by shapes, the number of steps after which to ask again

    def wants_again(self) -> bool:
        """Whether so many steps have run in the plain graph by now that the answer may be another one."""
        return self._steps_done() >= self._again_after

    def again(self, shapes: tuple) -> bool:
        """Take note of a batch of shapes for which the plain graph was the answer; whether to ask anew."""
        return self._due(shapes) or self._others.ripe(shapes, self._more())

    def decide(self, new_shapes: NewShapes) -> str:
        """The way to run batches of new shapes.

        Raises:
            XLAUnsupportedError: With `jit_compile=True`, naming what XLA cannot compile.
        """
        if self.jit_compile is True:
            if new_shapes.blockers:
                refuse_ops(self.model, list(new_shapes.blockers))
            return self._decided(new_shapes, "xla", "jit_compile=True")
        start = time.perf_counter()
        way, reason, measured = self._auto(new_shapes)
        if convolutions := new_shapes.facts.tower:
            reason += f" ({convolutions} convolutions, which XLA is slow at on CPU, run plainly)"
        return self._decided(new_shapes, way, reason, measured, time.perf_counter() - start)

    def failed(self, new_shapes: NewShapes, way: str, reason: str, node: str = "") -> str:
        """Answer that a way does not work, at the operation `node`: the plain graph, unless XLA was asked for.

        Raises:
            XLAUnsupportedError: With `jit_compile=True`.
        """
        place = place_of(self.model, node)
        if self.jit_compile is True:
            raise XLAUnsupportedError(
                f"XLA failed{place} on the {self.kind} step of {self.model.name!r}, and nothing of that step has run: "
                f"{reason}\n"
                'Fix: compile with jit_compile="auto", which falls back to the plain graph, or with jit_compile=False.'
            )
        return self._decided(new_shapes, "graph", f"XLA failed{place}: {reason}")

    def _auto(self, new_shapes: NewShapes) -> tuple[str, str, dict[str, float]]:
        """The way, the reason, and milliseconds a step."""
        way = "partial" if new_shapes.facts.blocked or new_shapes.facts.tower else "xla"
        if new_shapes.facts.unsafe:
            return "graph", f"a trial of {', '.join(new_shapes.facts.unsafe)} could not be undone", {}
        pace, to_come = self.pace(), self._steps_to_come()
        doubted = self._due(new_shapes.shapes)
        if doubted:
            self._doubts.pop(new_shapes.shapes, None)
        elif pace is not None and pace is self._answered:
            to_come = self._others.runs(new_shapes.shapes) * self._more()
            if not to_come:
                return "graph", "other shapes than the batches before; tried if they come often", {}
        else:
            self._answered, self._again_after = pace, math.inf
        key = self._key(new_shapes)
        times = self.memory.get(key)
        if doubted and times and way in times:
            times = self._try(new_shapes, dict(times), way, to_come)
            self.memory.put(key, times)
            source = "measured again"
        elif times is None:
            times = self._measure(new_shapes, way, to_come)
            if way in times or "failed" in times:
                self.memory.put(key, times)
            source = "measured"
        else:
            source = "measured in an earlier run"
        measured = {name: 1e3 * times[name] for name in ("graph", way) if name in times}
        if "failed" in times:
            return "graph", f"{way} failed: {times['failed']}", measured
        if way not in times:
            enough = estimated_compile(new_shapes.facts) / (gain_hoped(new_shapes.facts) * times["graph"])
            return "graph", self._too_few(to_come, enough), measured
        if times[way] > MARGIN * times["graph"]:
            if source == "measured" and self._doubtful(times, way, to_come):
                self._doubts[new_shapes.shapes] = self._steps_done() + LATER * to_come
            return "graph", f"{source}: XLA is not faster", measured
        enough = times["compile"] / (times["graph"] - times[way])
        if source == "measured in an earlier run" and to_come < enough:
            return "graph", f"{source}: {self._too_few(to_come, enough)}", measured
        self._others.gains(times["graph"] - times[way], times["compile"])
        return way, source, measured

    def _too_few(self, to_come: float, enough: float) -> str:
        self._again_after = enough
        return f"{to_come:.0f} steps to come cannot repay a compilation, {enough:.0f} could"

    def _measure(self, new_shapes: NewShapes, way: str, to_come: float) -> dict:
        cost = estimated_compile(new_shapes.facts)
        for repeats in (1, REPEATS):  # mostly it is clear after one step
            graph = new_shapes.trial("graph", repeats, LIMIT).step
            gain = gain_hoped(new_shapes.facts) * graph * to_come
            if not cost / UNCLEAR < gain < cost * UNCLEAR:
                break
        if gain < cost:
            return {"graph": graph}
        return self._try(new_shapes, {"graph": graph}, way, to_come)

    def _try(self, new_shapes: NewShapes, times: dict, way: str, to_come: float) -> dict:
        """These times with those of another way, measured in turns: other work on the machine only slows."""
        try:
            if way not in times:
                timing: Timing = new_shapes.trial(way, REPEATS, LIMIT)
                times = {**times, way: timing.step, "compile": timing.first}
            start = time.perf_counter()
            for again in range(AGAIN):
                worth_it = time.perf_counter() - start < WORTH * times["graph"] * to_come
                if again and (not worth_it or not CLOSE < times[way] / times["graph"] < 1 / CLOSE):
                    break
                for each in ("graph", way):
                    times[each] = min(times[each], new_shapes.trial(each, REPEATS, LIMIT).step)
        except WayFailed as error:
            return {"graph": times["graph"], "failed": f"{error}{place_of(self.model, error.node)}"}
        return times

    def _doubtful(self, times: dict, way: str, to_come: float) -> bool:
        """Whether a loss may be due to other work on the machine, and a second opinion costs little."""
        trial = (1 + REPEATS) * (times["graph"] + times[way])
        return times[way] < NOISE * times["graph"] and trial < WORTH * times["graph"] * to_come

    def _due(self, shapes: tuple) -> bool:
        """Whether it is time for a second opinion on these shapes."""
        return shapes in self._doubts and self._steps_done() >= self._doubts[shapes]

    def _steps_to_come(self) -> float:
        pace = self.pace()
        left = pace.left() if pace is not None else None
        if left is None:
            left = UNKNOWN_STEPS * (pace.epochs if pace is not None else 1)
        return max(left, self._steps_done())  # who came back so often will come again

    def _steps_done(self) -> int:
        return sum(tally.steps for (kind, _), tally in self.journal.tallies.items() if kind == self.kind)

    def _more(self) -> float:
        """How many times as many steps as have run are to come."""
        return self._steps_to_come() / max(self._steps_done(), 1)

    def _key(self, new_shapes: NewShapes) -> str:
        device = f"{new_shapes.facts.device} {os.cpu_count()}"
        return f"{new_shapes.facts.fingerprint} {self.kind} [{_shapes(new_shapes)}] {device} {versions()}"

    def _decided(self, new_shapes: NewShapes, way: str, reason: str, measured=None, spent: float = 0.0) -> str:
        self.journal.decided(Decision(self.kind, _shapes(new_shapes), way, reason, measured or {}, spent))
        return way


def _shapes(new_shapes: NewShapes) -> str:
    return describe(tuple(Leaf(*leaf) for leaf in new_shapes.leaves))


def gain_hoped(facts: StepProfile) -> float:
    """The part of the plain graph's time that XLA may save: little where most is convolutions, which stay there."""
    rest = 1 - facts.tower / max(facts.heavy, 1)
    return (1 - BEST) * max(rest, FEWEST)


def estimated_compile(facts: StepProfile) -> float:
    """Seconds that a compilation takes with its trial, roughly.

    A step with loops is traced again for it, and one with convolutions is compiled in many parts.
    """
    return (0.4 + 0.0015 * facts.ops) * (2 if facts.loops else 1) + 0.03 * facts.tower
