"""Steps that are run for a trial, in the plain graph and in another way, in turns."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from keras_xla.backend.new_shapes import NewShapes
from keras_xla.training.decide.cost import gain_hoped
from keras_xla.training.decide.decisions import THIS_RUN, Times

TIMED_RUNS, TIMED_SECONDS = 4, 0.25  # of a trial, and the seconds after which no further run starts
UNCLEAR_FACTOR = 1.5  # within which the gain hoped for is so near the cost that the plain graph is timed better
MOST_ROUNDS = 8  # of trials, while both ways are close
CLOSE_RATIO = 0.8  # of the times of two ways, from which on more rounds could change the answer
SHARE_FOR_TRIALS = 0.02  # of the time of the steps to come, that further trials may take
DISTURBED_RATIO = 2.5  # of XLA's time to the plain graph's, up to which other work may have made the loss


@dataclass
class Trials:
    """Trials of one batch."""

    new_shapes: NewShapes  # runs them
    way: str  # to compare with the plain graph: `"xla"` or `"partial"`
    steps_to_come: float  # how often the step will run
    cost: Callable[[float], float]  # of finding out, in seconds, for a step that takes the plain graph so many
    graph: float = 0.0  # seconds of the plain graph, as far as they are known

    @property
    def least_steps(self) -> float:
        """With fewer steps to come than these a trial takes more than they could gain, however slow they are."""
        return (self.cost(1.0) - self.cost(0.0)) / gain_hoped(self.new_shapes.facts)

    def measure(self) -> Times:
        """The times of both ways, or of the plain graph alone where a try of the other one cannot pay off.

        Raises `TrialImpossible` if nothing can be tried now, `WayFailed` if the other way does not work.
        """
        for repeats in (1, TIMED_RUNS):  # mostly it is clear after one step
            self.graph = graph = self.new_shapes.trial("graph", repeats, TIMED_SECONDS).step
            gain, cost = gain_hoped(self.new_shapes.facts) * graph * self.steps_to_come, self.cost(graph)
            if not cost / UNCLEAR_FACTOR < gain < cost * UNCLEAR_FACTOR:
                break
        if gain < cost:
            return Times(graph)
        timing = self.new_shapes.trial(self.way, TIMED_RUNS, TIMED_SECONDS)
        return self.compare(Times(graph, self.way, timing.step, timing.first, trials=0))

    def compare(self, times: Times) -> Times:
        """Better times of both ways, measured in turns: other work on the machine only slows.

        Raises `TrialImpossible` if nothing can be tried now, `WayFailed` if the other way does not work.
        """
        self.graph = times.graph
        best = {"graph": times.graph, self.way: cast(float, times.tried)}
        start = time.perf_counter()
        for again in range(MOST_ROUNDS):
            dear = time.perf_counter() - start > SHARE_FOR_TRIALS * best["graph"] * self.steps_to_come
            if again and (dear or not CLOSE_RATIO < best[self.way] / best["graph"] < 1 / CLOSE_RATIO):
                break
            for way in best:
                best[way] = min(best[way], self.new_shapes.trial(way, TIMED_RUNS, TIMED_SECONDS).step)
        return replace(
            times, graph=best["graph"], tried=best[self.way], trials=times.trials + 1, run=THIS_RUN, time=time.time()
        )

    def steps_to_repay(self, times: Times) -> float:
        """How many steps repay what it costs to find out, at the gain that may be hoped for."""
        return self.cost(times.graph) / (gain_hoped(self.new_shapes.facts) * times.graph)

    def may_be_wrong(self, times: Times) -> bool:
        """Whether a loss may be due to other work on the machine, and another trial costs little."""
        tried = cast(float, times.tried)
        trial = (1 + TIMED_RUNS) * (times.graph + tried)
        cheap = trial < SHARE_FOR_TRIALS * times.graph * self.steps_to_come
        return cheap and tried < DISTURBED_RATIO * times.graph
