"""The functions that `fit`, `evaluate` and `predict` call for their steps, around a backend's runner."""

import time
import weakref
from collections.abc import Callable
from typing import Any

import keras

from keras_xla.backend import keras2
from keras_xla.backend.execution import Execution
from keras_xla.backend.steps import end_of_data
from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session

# Seconds that steps may run ahead of the callbacks, and how many of them. Entering the loop around the steps costs a
# graph of thousands of operations milliseconds: several steps of 40 ms, too, are faster in one call.
AHEAD_SECONDS, AHEAD_STEPS = 0.2, 64


class StepFunction:
    """Runs the batches of train or test steps, several at once where nobody watches them one by one.

    Keras calls once for every batch. Where callbacks only look at epochs, one call runs many batches in one graph, and
    the calls for those return at once. Whoever else calls, with an iterator of their own, gets one step at a time; a
    function that somebody has put around this one does, too.

    `steps` is what `steps_per_execution` asks for: each call is for so many batches. `session()` is the call of `fit`
    or `evaluate` that is going on, or None.
    """

    takes_rows = True  # numbers of rows, in place of batches

    def __init__(self, runner, kind: str, steps: int, session: Callable[[], Session | None], journal: Journal):
        self.runner, self._kind, self.steps, self._session, self._journal = runner, kind, steps, session, journal
        self._ahead = runner.first_steps  # that a call is for
        self._running: tuple[Execution, float] | None = None  # with the time at which it began
        self._outer: Callable[[], Session | None] = lambda: None  # the call that the last steps were for

    def __call__(self, *arguments) -> Any:
        """Train or test on the next batches of the iterator; the outputs of the last of them.

        On JAX, the state is in front of the iterator. A loop gives back the state that it got.
        """
        session = self._session()
        if session is None or not session.answers_loop():
            try:
                return self._run(arguments, self.steps).outputs
            except StopIteration:
                raise end_of_data(arguments[-1], self.steps) from None
            finally:
                self.forget()  # nobody times it, and its state may be replaced by then
        self._begin(session)
        self._time(session)
        if session.ahead_steps:
            session.ahead_steps -= 1
            return session.logs
        if self.runner.frees_slowly and arguments[-1] is not session.iterator:
            session.let_go()
            session.iterator = arguments[-1]
        made = self._run(arguments, self._count(session))
        session.done += made.batches
        session.logs = made.outputs
        if session.left_in_epoch() == 0:
            self._time(session)  # the loop will not ask again, and Keras is about to wait for the metrics
        if self.steps == 1:
            session.ahead_steps = made.batches - 1
        return session.logs

    def forget(self) -> None:
        """Let go of what the last steps made."""
        self._running = None

    def _begin(self, session: Session) -> None:
        """Where this is the first step of a call, find out anew how fast its batches come; of arrays, all calls' do."""
        outer = session.sessions.current.get("train", session) if session.of_fit else session
        if self._outer() is not outer:
            self._outer = weakref.ref(outer)
            if self._kind not in outer.in_memory:
                self._ahead = min(self._ahead, self.runner.first_steps)

    def _run(self, arguments: tuple, count: int) -> Execution:
        start = time.perf_counter()
        made = self.runner.run(*arguments, count)
        self._running = (made, start) if made.settled else None  # no trial, no compilation
        if made.wait is None:
            self._took(time.perf_counter() - start)
        return made

    def _time(self, session: Session) -> None:
        """Take the time of the steps before, which may run still. What they made is in the hands of Keras by now."""
        if self._running is not None and self._running[0].outputs is session.logs:
            made, start = self._running
            made.wait()  # type: ignore[misc]  # no None: what is done when it returns was taken off in `_run`
            self._took(time.perf_counter() - start)

    def _took(self, seconds: float) -> None:
        if self._running is not None:
            (made, _), self._running = self._running, None
            # As the last ones were, since data may come slower than before; and twice as many at most, since those that
            # were read beforehand tell little about the others. So hardly a call keeps Ctrl-C waiting.
            fitting = int(AHEAD_SECONDS * made.batches / max(seconds, 1e-6))
            most = 1 if made.calls_python else min(AHEAD_STEPS, 2 * self._ahead)
            self._ahead = max(1, min(most, fitting))
            self._journal.ran(self._kind, made.way, made.batches, seconds)

    def _count(self, session: Session) -> int:
        if self.steps > 1 or session.stopped() or session.wrapped(self) or not session.ahead:
            return self.steps
        left = session.left_in_epoch()
        return self._ahead if left is None else max(1, min(self._ahead, left))


def run_batch(model: keras.Model, kind: str, batch: Any, function: Any) -> Any:
    """The outputs of a batch by a `function` of Keras' own, which the model has where it was compiled again meanwhile.

    Raises:
        TypeError: It is None, in plain Keras' words.
    """
    as_list = kind == "predict" and not keras2.is_keras2(model)
    return function([batch] if as_list else iter([batch]))


class PredictFunction:
    """Runs lists of batches of `predict`; their outputs are joined along the first axis."""

    def __init__(self, runner, session: Callable[[], Session | None], journal: Journal):
        self.runner, self._session, self._journal = runner, session, journal

    def __call__(self, batches) -> Any:
        """The outputs for a list of batches, or for the next batch of an iterator (Keras 2)."""
        session = self._session()
        of_loop = session if session is not None and session.answers_loop() else None
        batches = [next(batches)] if hasattr(batches, "__next__") else list(batches)
        made = self.runner.joined([self._run(batch) for batch in batches])
        if of_loop is not None:
            of_loop.done += len(batches)
        return made

    def _run(self, batch: Any) -> Any:
        start = time.perf_counter()
        made = self.runner.run_batch(batch)
        if made.settled:
            self._journal.ran("predict", made.way, 1, time.perf_counter() - start)
        return made.outputs
