"""The function that `fit`, `evaluate` and `predict` call, around a backend's runner."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Pace

# Seconds that steps may run ahead of the callbacks, and how many of them. Entering the loop around the steps costs a
# graph of thousands of operations milliseconds: several steps of 40 ms, too, are faster in one call.
EXECUTION, MOST = 0.2, 64


class Driver:
    """Runs the batches of train or test steps, several at once where nobody watches them one by one.

    Keras calls once for every batch. Where callbacks only look at epochs, one call runs many batches in one graph, and
    the calls for those return at once.

    Args:
        runner: The backend's.
        kind: `"train"` or `"test"`.
        steps: What `steps_per_execution` asks for; each call is for so many batches.
        pace: Gives the `Pace` of the call of `fit` or `evaluate` that is going on, or None.
        journal: Is told how long steps took.
    """

    def __init__(self, runner, kind: str, steps: int, pace: Callable[[], Pace | None], journal: Journal):
        self.runner, self._kind, self.steps, self._pace, self.journal = runner, kind, steps, pace, journal
        self._ahead, self._logs, self._pass = 0, None, None
        self._fastest = float("inf")
        self._held = None

    def let_go(self) -> None:
        """Give up the last iterator, without waiting for it.

        Freeing a `tf.data` iterator now and then waits for its autotuner to wake up, for up to about as long as the
        iterator has lived. Keras does that between the epochs; here a thread waits.
        """
        held, self._held = [self._held], None
        if held[0] is not None:
            free(held)

    def __call__(self, iterator: Iterator) -> Any:
        """Train or test on the next batches; the outputs of the last of them."""
        pace = self._pace()
        here = (pace, pace.begun if pace else 0)
        feed = pace.feed if pace else None
        if here != self._pass:
            self._pass, self._ahead = here, 0
            if feed:
                feed.begin()
        if self._ahead:
            self._ahead -= 1
            return self._logs
        if iterator is not self._held:
            self.let_go()
            self._held = iterator
        start = time.perf_counter()
        count = self._count(pace)
        self._logs, ran = feed.run(self.runner, count) if feed else self.runner.run(iterator, count)
        seconds = time.perf_counter() - start
        if self.runner.settled:  # no trial, no compilation
            self._fastest = min(self._fastest, seconds / ran)
            self.journal.ran(self._kind, self.runner.way, ran, seconds)
        if self.steps == 1:
            self._ahead = ran - 1
        if pace:
            pace.done += ran
        return self._logs

    def _count(self, pace: Pace | None) -> int:
        if self.steps > 1 or pace is None or not pace.ahead or self._fastest == float("inf"):
            return self.steps
        count = max(1, min(MOST, int(EXECUTION / self._fastest)))
        left = pace.left_in_epoch()
        return count if left is None else max(1, min(count, left))


class PredictDriver:
    """Runs lists of batches of `predict`; their outputs are joined along the first axis.

    Args:
        runner: The backend's.
        pace: Gives the `Pace` of the call of `predict` that is going on, or None.
        journal: Is told how long steps took.
    """

    def __init__(self, runner, pace: Callable[[], Pace | None], journal: Journal):
        self.runner, self._pace, self.journal = runner, pace, journal

    def __call__(self, batches) -> Any:
        """The outputs for a list of batches, for the next batch of an iterator (Keras 2), or for what feeds instead."""
        pace = self._pace()
        if pace and pace.feed:
            return pace.feed.run(self)
        batches = [next(batches)] if hasattr(batches, "__next__") else list(batches)
        start = time.perf_counter()
        outputs = [self.runner.run_batch(batch) for batch in batches]
        if self.runner.settled:
            self.journal.ran("predict", self.runner.way, len(batches), time.perf_counter() - start)
        return self.runner.joined(outputs)


def free(held: list) -> None:
    """Empty a list in a thread of its own, where its elements are freed if nothing else refers to them."""
    threading.Thread(target=held.clear, daemon=True).start()
