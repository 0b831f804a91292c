"""`predict` on a `tf.data` dataset: many batches in one graph, while Keras' own method counts groups of them.

Outputs are put where they belong as they come. Keras keeps those of each group until the end, so it is given a zero.
Behind the last group its loop is told to stop; where other calls share that flag, it goes on to its own end, idle.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session, whole
from keras_xla.training.steps.run_ahead import AHEAD_SECONDS, PredictFunction, run_batch

GROUP_BATCHES = 1024  # most batches of a group
LARGE_OUTPUTS = 2**18  # numbers in a batch's outputs from which on joining them costs more than a call for each


class StopFlag:
    """A model's `stop_predicting`, which the calls of `predict` in all threads share; a context for each of them."""

    def __init__(self):
        self._lock, self._calls = threading.Lock(), 0

    def __enter__(self):
        with self._lock:
            self._calls += 1
        return self

    def __exit__(self, *_):
        with self._lock:
            self._calls -= 1

    def set(self, model: keras.Model, stop: bool) -> None:
        """Set or reset the flag, unless other calls would take it for theirs."""
        with self._lock:
            if self._calls == 1:
                model.stop_predicting = stop


class Groups:
    """The batches of one call of `predict`, in groups that grow as far as the callbacks may wait.

    The session has their iterator. There are `batches` of them, None if that is not known, of which `steps` are wanted,
    None for all. `done` of them have run, and `made` has their outputs.
    """

    def __init__(self, runner: Any, batches: int | None, steps: int | None, session: Session, journal: Journal):
        self._session, self._journal = session, journal
        self._watched = False
        total = whole(steps or batches or -1)  # as Keras understands it
        self._total = total if total > 0 else None
        self.done, self._count = 0, 1
        lengths = [n for n in (self._total, batches) if n]
        self.made, self._nothing = runner.gathered(min(lengths, default=None)), keras.ops.zeros(())

    @property
    def ended(self) -> bool:
        """Whether all batches that are wanted have run, as far as their number is known."""
        return self._total is not None and self.done >= self._total

    def begin(self) -> None:
        """The first batch is next; callbacks that look at batches by now get one by one, with its outputs."""
        self._watched = not self._session.ahead

    def run_one(self, function: Callable) -> Any:
        """Run the next batch by `function(batch) -> outputs`; otherwise as `run`."""
        if not self.ended:
            outputs = function(next(self._session.iterator))
            self.done += 1
            self._session.done = self.done
            self.made.add(outputs, 1)
            return outputs if self._watched else self._nothing
        return self._nothing

    def run(self, runner: Any) -> Any:
        """Run the next group, unless all have run.

        Returns a number, of which Keras may keep as many as it likes; the outputs where callbacks look at batches.

        `runner` is that of the model's function now.

        Raises `StopIteration` if there is no batch left, and not all that are wanted have come.
        """
        if self.ended:
            return self._nothing
        count = self._count if self._total is None else min(self._count, self._total - self.done)
        start = time.perf_counter()
        made = runner.run(self._session.iterator, count, every=True)
        seconds = time.perf_counter() - start
        self.done += made.batches
        self._session.done = self.done
        if made.settled:
            self._journal.ran("predict", made.way, made.batches, seconds)
            # Twice as many at most: batches that were read beforehand tell little about how fast the others come.
            most = 1 if self._watched or made.calls_python else 2 * count
            self._count = min(most, next_count(made.batches, seconds, made.outputs))
        self.made.add(made.outputs, made.batches)
        return made.outputs if self._watched else self._nothing


class OtherFunction:
    """A function of Keras' own, which the model has since a callback compiled it again, as one that runs `groups`."""

    def __init__(self, model: keras.Model, groups: Groups):
        self._model, self._groups, self.function = model, groups, model.predict_function

    def __call__(self, numbers: Any) -> Any:
        return [self._groups.run_one(self._outputs) for _ in numbers][-1]

    def _outputs(self, batch: Any) -> Any:
        return run_batch(self._model, "predict", batch, self.function)


class GroupCallbacks(keras.callbacks.CallbackList):
    """Callbacks that are told the numbers of batches where Keras counts groups; says when there are no more.

    `all_read` is called where Keras' own loop would have taken all batches of the data.
    """

    def __init__(self, groups: Groups, flag: StopFlag, all_read: Callable[[], None], *args, **kwargs):
        self._groups, self._flag, self._told, self._over = groups, flag, 0, False
        self._all_read, self._stopped = all_read, False
        super().__init__(*args, **kwargs)

    def on_predict_begin(self, logs=None):
        super().on_predict_begin(logs)
        self._groups.begin()

    def on_predict_batch_begin(self, batch, logs=None):
        super().on_predict_batch_begin(self._groups.done, logs)
        # Keras is about to call the model's function, with a number of the counter.
        if not isinstance(self.model.predict_function, (PredictFunction, OtherFunction, type(None))):
            self.model.predict_function = OtherFunction(self.model, self._groups)

    def on_predict_batch_end(self, batch, logs=None):
        if self._told < self._groups.done:
            self._told = self._groups.done
            super().on_predict_batch_end(self._told - 1, logs)
            self._stopped = getattr(self.model, "stop_predicting", False)
        if self._groups.ended:
            self._flag.set(self.model, True)

    def on_predict_end(self, logs=None):
        self.go_on()
        if not self._stopped:
            self._all_read()
        super().on_predict_end(logs)

    def go_on(self) -> None:
        """Take back that the loop was told to stop, which no callback of the user's has asked for."""
        if not self._over and self._groups.ended:
            self._flag.set(self.model, False)
        self._over = True


def predict_groups(
    model: keras.Model,
    function: PredictFunction,
    session: Session,
    flag: StopFlag,
    counter: Any,
    given: dict[str, Any],
    journal: Journal,
) -> Any:
    """What `model.predict` returns, or raises.

    `flag` has this call among its own. `counter` is a dataset without an end, of which Keras makes its groups: it is
    given as many as there are batches. `given` are all arguments of `predict`; no callback of them watches batches.
    """
    verbose, steps, data = given["verbose"], given["steps"], given["x"]
    cardinality = int(data.cardinality())
    batches = cardinality if cardinality >= 0 else None  # it is not known, or there is no end
    groups = Groups(function.runner, batches, steps, session, journal)

    def all_read() -> None:
        if batches and groups.done >= batches:
            iter(data)  # as Keras makes one more: with each, a dataset that shuffles goes on to its next order

    shown = GroupCallbacks(
        groups,
        flag,
        all_read,
        given["callbacks"],
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=1,
        steps=steps or batches,
        model=model,
    )
    session.group, session.iterator = groups, iter(data)
    try:
        # `steps` stays: there are no more groups than that, and with it Keras warns of data that end before.
        counter = counter.take(batches) if batches else counter
        type(model).predict(model, **{**given, "x": counter, "callbacks": shown})
        return groups.made.result()
    finally:
        session.group = None
        if isinstance(model.predict_function, OtherFunction):
            model.predict_function = model.predict_function.function
        shown.go_on()


def next_count(ran: int, seconds: float, outputs: Any) -> int:
    """How many batches the next group may have, after one of which it is known how long it took and what it gave."""
    made = [x.shape for x in keras.tree.flatten(outputs) if x is not None]
    if sum(math.prod(n or 1 for n in shape) for shape in made) > LARGE_OUTPUTS * ran:  # None: of ragged ones
        return 1
    return max(1, min(GROUP_BATCHES, int(ran * AHEAD_SECONDS / max(seconds, 1e-6))))
