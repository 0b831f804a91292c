"""`jit_compile="auto"`: XLA, part of it, or the plain graph, whichever is faster, found out without wasting time.

The plain graph's time is measured first. XLA is tried where the kind of model promises a gain, the steps still to come
can repay the trial, and no earlier one has answered already. Trials run on copies of the weights and the seeds, so that
these and the data are those of a run that tried nothing.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras

from keras_xla.backend import machine
from keras_xla.backend.new_shapes import NewShapes, TrialImpossible, WayFailed
from keras_xla.backend.signature import describe
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.diagnosis.explain import place_of, refuse_ops
from keras_xla.logger import logger
from keras_xla.training.decide.cost import STEPS_OF_A_TRIAL, estimated_cost, gain_hoped
from keras_xla.training.decide.decisions import Decisions, MeasurementKey, Times
from keras_xla.training.decide.rare_shapes import RareShapes
from keras_xla.training.decide.trials import Trials
from keras_xla.training.reports.journal import Decision, Journal
from keras_xla.training.session import Session

MARGIN = 0.97  # XLA has to take less of the plain graph's time than this
STEPS_OF_AN_UNKNOWN_EPOCH = 200  # of data that do not tell their length
STEPS_UNTIL_POSSIBLE = 1000  # after which a trial that was impossible may be none
# A loss of XLA may be due to other work on the machine, and is measured again.
SHARE_OF_STEPS_BEFORE = 0.1  # of the steps to come, that run before that
MOST_TRIALS = 3  # of a graph, over all runs; then a near miss is one
MOST_SHAPES = 4096  # of which something is kept: ragged data have no end of them
DETERMINISTIC = "TensorFlow's op determinism is on, and a choice by the clock may be another one in the next run"


class _Measurement(NamedTuple):
    """Both ways' times, and whether they were measured for this decision: for the first time, or again."""

    times: Times
    now: bool = True
    again: bool = False

    @property
    def source(self) -> str:
        """Who has measured, in words."""
        if not self.now:
            return self.times.source
        return "measured again" if self.again else "measured"


@dataclass
class Policy:
    """Decides for one kind of step of one model."""

    model: keras.Model
    kind: str  # `"train"`, `"test"` or `"predict"`
    jit_compile: bool | str  # True (XLA or an error), or `"auto"`
    decisions: Decisions  # what was measured before
    journal: Journal  # takes the decisions down
    pace: Callable[[], Session | None]  # gives the call that is going on, or None
    _rare_shapes: RareShapes = field(default_factory=RareShapes)
    _calls: int = 0
    _begun: dict[tuple, int] = field(default_factory=dict)  # by shapes, how many of those began with them
    _doubted_from: dict[tuple, float] = field(default_factory=dict)  # the step that a second trial waits for
    _untried_until: dict[tuple, float] = field(default_factory=dict)  # the step that an impossible trial waits for
    _enough: dict[tuple, float] = field(default_factory=dict)  # the steps to come that are worth another question
    _steps_before: int = 0  # that ran when this was made

    def __post_init__(self) -> None:
        self._steps_before = self._steps_done

    def known(self, shapes: tuple) -> None:
        """Take note that an earlier answer holds for batches of a call; the first of them are its usual ones."""
        session = self.pace()
        if session is None or session.usual is None:
            self._begin_with(shapes, session)

    def again(self, shapes: tuple, comes: bool = True) -> bool:
        """Whether to ask anew about shapes that run as the plain graph; `comes` tells that a batch of them does."""
        if steps_to_come := self._steps_to_come(shapes):
            waits = self._doubted_from.get(shapes, math.inf), self._untried_until.get(shapes, math.inf)
            if self._steps_done >= min(waits) or steps_to_come >= self._enough.get(shapes, math.inf):
                return True
        elif comes and shapes not in self._begun:
            self._rare_shapes.wait(shapes)
        return comes and self._rare_shapes.ripe(shapes, self._times_more)

    def decide(self, new_shapes: NewShapes) -> str:
        """The way to run batches of new shapes.

        With `jit_compile=True`, raises `XLAUnsupportedError`, naming what XLA cannot compile.
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

        With `jit_compile=True`, raises `XLAUnsupportedError`.
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
        facts, shapes = new_shapes.facts, new_shapes.shapes
        doubted = self._steps_done >= self._doubted_from.get(shapes, math.inf)
        for waits in (self._doubted_from, self._untried_until, self._enough):
            waits.pop(shapes, None)
        if facts.deterministic:
            return "graph", DETERMINISTIC, {}
        if facts.unsafe:
            return "graph", f"a trial of {', '.join(facts.unsafe)} could not be undone", {}
        steps_to_come, session = self._steps_to_come(shapes), self.pace()
        if session is None or session.usual is None:
            self._begin_with(shapes, session)
        if not steps_to_come:
            self._rare_shapes.wait(shapes)
            _note(self._enough, shapes, STEPS_OF_A_TRIAL / gain_hoped(facts))  # of calls that begin with them
            return "graph", "other shapes than the batches before; tried if they come often", {}
        way = "partial" if facts.blocked or facts.tower else "xla"
        trials = Trials(new_shapes, way, steps_to_come, functools.partial(estimated_cost, facts))
        key = self._key(new_shapes)
        known = self.decisions.get(key)
        if known is None and steps_to_come < trials.least_steps:
            return "graph", self._too_few(shapes, steps_to_come, trials.least_steps, "a trial"), {}
        try:
            measurement = self._measured(trials, key, known, doubted)
        except TrialImpossible as error:
            _note(self._untried_until, shapes, self._steps_done + STEPS_UNTIL_POSSIBLE)
            return "graph", f"no trial: {error}", {}
        return self._faster(trials, measurement)

    def _steps_to_come(self, shapes: tuple) -> float:
        """Steps on batches of these shapes that are expected; 0 if they had better wait for an answer.

        Who came back so often will come again. Shapes that have waited once are judged by how often they came: what a
        call begins with need not be what most of it is.
        """
        session = self.pace()
        usual = None if session is None else session.usual
        if (came := self._rare_shapes.came(shapes)) is not None:
            waits = usual not in (None, shapes) and not self._rare_shapes.was_asked(shapes)
            return 0 if waits else came * self._times_more
        if usual is None:
            often = self._begun.get(shapes, 0) / max(self._calls, 1)
            return max(self._left, often * self._steps_done, 1)
        if usual != shapes:
            return 0
        return max(self._left, 1 if session is None or session.left() is not None else self._steps_done)

    def _begin_with(self, shapes: tuple, session: Session | None) -> None:
        if session is not None:
            session.usual = shapes
        self._calls += 1
        _note(self._begun, shapes, self._begun.get(shapes, 0) + 1)

    def _measured(self, trials: Trials, key: MeasurementKey, known: Times | None, doubted: bool) -> _Measurement:
        """What is `known` of both ways, or what trials tell; where that is `doubted`, they tell it again."""
        known = known if known is not None and known.way == trials.way else None
        if known is not None and (known.tried is None or not doubted):
            return _Measurement(known, now=False)
        lasting = True
        try:
            times = trials.measure() if known is None else trials.compare(known)
        except WayFailed as error:
            times = Times(trials.graph, trials.way, failed=f"{error}{place_of(self.model, error.node)}")
            lasting = error.lasting
        if times.way and lasting:
            self.decisions.put(key, times, f"{self.model.name}.{self.kind}_step", faster_way(times))
        return _Measurement(times, again=doubted or known is not None)

    def _faster(self, trials: Trials, measurement: _Measurement) -> tuple[str, str, dict[str, float]]:
        """The way, the reason, and milliseconds a step."""
        times, source, shapes = measurement.times, measurement.source, trials.new_shapes.shapes
        seconds = {"graph": times.graph} | ({} if times.tried is None else {times.way: times.tried})
        measured = {way: 1e3 * each for way, each in seconds.items()}
        if times.failed:
            return "graph", f"{times.way} failed: {times.failed}", measured
        if times.tried is None:
            return "graph", self._too_few(shapes, trials.steps_to_come, trials.steps_to_repay(times)), measured
        if faster_way(times) == "graph":
            if not measurement.again and times.trials < MOST_TRIALS and trials.may_be_wrong(times):
                wait = SHARE_OF_STEPS_BEFORE * trials.steps_to_come
                _note(self._doubted_from, shapes, self._steps_done + wait)
            return "graph", f"{source}: XLA is not faster", measured
        enough = times.compile / (times.graph - times.tried)
        if not measurement.now and trials.steps_to_come < enough:
            return "graph", f"{source}: {self._too_few(shapes, trials.steps_to_come, enough)}", measured
        self._rare_shapes.gains(times.graph - times.tried, times.compile)
        return times.way, source, measured

    def _too_few(self, shapes: tuple, steps_to_come: float, enough: float, what: str = "a compilation") -> str:
        _note(self._enough, shapes, enough)
        return f"{steps_to_come:.0f} steps to come cannot repay {what}, {math.ceil(enough)} could"

    @property
    def _steps_done(self) -> int:
        done = sum(tally.steps for (kind, _), tally in list(self.journal.tallies.items()) if kind == self.kind)
        return done - self._steps_before

    @property
    def _left(self) -> float:
        """Steps that are still to come in this call, on batches of whatever shapes."""
        session = self.pace()
        left = session.left() if session is not None else None
        epochs = session.epochs if session is not None else 1
        return STEPS_OF_AN_UNKNOWN_EPOCH * epochs if left is None else left

    @property
    def _times_more(self) -> float:
        """How many times as many steps as have run are to come."""
        return max(self._left, self._steps_done) / max(self._steps_done, 1)

    def _key(self, new_shapes: NewShapes) -> MeasurementKey:
        return MeasurementKey(new_shapes.facts.fingerprint, self.kind, describe(new_shapes.leaves), **machine())

    def _decided(self, new_shapes: NewShapes, way: str, reason: str, measured=None, spent: float = 0.0) -> str:
        decision = Decision(self.kind, describe(new_shapes.leaves), way, reason, measured or {}, spent)
        self.journal.decided(decision)
        logger.info(f"decided {self.model.name}.{self.kind}_step runs as {way}: {decision.why('step')}")
        return way


def _note(kept: dict[tuple, Any], shapes: tuple, value: Any) -> None:
    """Keep a value; of those of many shapes, the one that was kept longest ago goes."""
    kept.pop(shapes, None)
    kept[shapes] = value
    if len(kept) > MOST_SHAPES:
        kept.pop(next(iter(kept)), None)


def faster_way(times: Times) -> str:
    """The plain graph, unless the other way takes so much less that it is no accident."""
    tried = times.tried is not None and times.tried <= MARGIN * times.graph
    return times.way if tried else "graph"
