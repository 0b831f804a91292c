"""`evaluate` and `predict` on arrays that nobody shuffles, and `predict` on datasets: many batches in one graph.

Keras' own methods come back to Python for every batch, and make a pipeline of arrays for every call. That takes most of
the time of a small model, and tens of milliseconds of a call with one batch. So what they do around the steps is done
here.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from keras_xla.backend import keras2
from keras_xla.backend.execution import Execution
from keras_xla.backend.row_numbers import MARK, are_numbers, owner_of
from keras_xla.backend.steps import DATA_ENDED, predict_data
from keras_xla.private.keras.tracebacks import filtered
from keras_xla.private.keras.trainer import CACHED_EVALUATION, LAST_LOGS, LOGS_IN_ORDER, last_logs, logs_in_order
from keras_xla.private.names import otherwise
from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session
from keras_xla.training.steps.array_rows import BATCH_SIZE_TYPES, ArrayRows, array_rows
from keras_xla.training.steps.batch_data import DatasetBatches, RowBatches, warn_of_end
from keras_xla.training.steps.run_ahead import AHEAD_SECONDS, PredictFunction, StepFunction, run_batch

GROUP_BATCHES = 1024  # most batches of a group
LARGE_OUTPUTS = 2**18  # numbers in a batch's outputs from which on joining them costs more than a call for each


@contextlib.contextmanager
def _data_may_end() -> Iterator[None]:
    """Where a step or a callback says that data have ended, the pass ends with Keras' warning."""
    try:
        yield
    except DATA_ENDED:
        warn_of_end()


class InOrder:
    """A call's batches, in groups that grow as far as the callbacks may wait.

    Attributes:
        batches: The batches themselves.
        runner: Of the function that the model has when the call begins.
        done: How many have run.
        outputs: Of the last group; empty before the first.
    """

    def __init__(self, batches: RowBatches | DatasetBatches, model: keras.Model, session: Session, journal: Journal):
        self._kind, self.batches = session.kind, batches
        self._model, self._session, self._journal = model, session, journal
        self.runner = self._function().runner
        session.steps = batches.steps
        self.done = 0
        self.outputs: Any = {}

    @_data_may_end()
    def run(
        self,
        shown: keras.callbacks.CallbackList,
        stopped: Callable[[], bool],
        take: Callable[[Any, int], Any] = lambda outputs, batches: None,
    ) -> None:
        """Run all batches, unless `stopped()`; callbacks see the first and the last of each group.

        `take` is given the outputs of each group, and of how many batches they are.
        """
        steps, count = self.batches.steps, 1
        while steps is None or self.done < steps:
            made, seconds = self._group(shown, min(count, self.batches.alike(self.done)), take)
            if made.settled:
                self._journal.ran(self._kind, made.way, made.batches, seconds)
                ahead = self._session.ahead and not made.calls_python
                most = next_count(made.batches, seconds, made.outputs) if ahead else 1
                count = min(most, self.batches.most_after(count))
            if stopped():  # Keras looks behind the first batch
                return
        self.batches.end(self.done)

    def _function(self) -> Any:
        """The model's, which Keras asks for at every step: a callback may compile the model again."""
        return getattr(self._model, f"{self._kind}_function")

    def _group(self, shown, count: int, take: Callable[[Any, int], Any]) -> tuple[Execution, float]:
        predicts = self._kind == "predict"
        getattr(shown, f"on_{self._kind}_batch_begin")(self.done)
        start = time.perf_counter()
        function = self._function()
        if isinstance(function, (StepFunction, PredictFunction)):
            made = self.batches.run(function.runner, self.done, count, predicts)
        else:
            outputs = run_batch(self._model, self._kind, self.batches.batch(self.done), function)
            made = Execution(outputs, 1, "graph", settled=False)
        seconds = time.perf_counter() - start
        self.done = self._session.done = self.done + made.batches
        self.outputs = made.outputs
        take(made.outputs, made.batches)
        told = {"outputs": made.outputs} if predicts else made.outputs
        getattr(shown, f"on_{self._kind}_batch_end")(self.done - 1, told)
        return made, seconds


def next_count(ran: int, seconds: float, outputs: Any) -> int:
    """How many batches the next group may have, after one of which it is known how long it took and what it gave."""
    made = [x.shape for x in keras.tree.flatten(outputs) if x is not None]
    if sum(math.prod(n or 1 for n in shape) for shape in made) > LARGE_OUTPUTS * ran:  # None: of ragged ones
        return 1
    return max(1, min(GROUP_BATCHES, int(ran * AHEAD_SECONDS / max(seconds, 1e-6))))


@otherwise(None)
def rows_in_order(
    model: keras.Model,
    session: Session,
    given: dict[str, Any],
    extra: dict[str, Any],
    arrays: Mapping[int, ArrayRows],
    function_of: Callable[[str], Any],
    journal: Journal,
) -> InOrder | None:
    """The batches of arrays for `evaluate` or `predict`; None where Keras has to read the data, or is watched.

    Args:
        model: The model.
        session: The call.
        given: All its arguments.
        extra: Those that `fit` adds.
        arrays: Those of the calls that go on, by the number that row numbers carry.
        function_of: From a kind of step to its function, which Keras has not asked for yet.
        journal: What ran is noted there.
    """
    if given["steps"] is not None or not session.ahead:
        return None
    size = given["batch_size"] or 32
    if not isinstance(size, BATCH_SIZE_TYPES) or size < 0:  # Keras says what is wrong with it
        return None
    inside = CACHED_EVALUATION in extra  # of fit, which has made row numbers of its validation data
    if extra and not inside:
        return None
    function = function_of(session.kind)
    if not isinstance(function, (StepFunction, PredictFunction)) or getattr(function, "steps", 1) > 1:
        return None
    if inside and not are_numbers(given["x"]):
        return None
    rows = arrays[owner_of(given["x"][MARK][0])] if inside else array_rows(given)
    if rows is None:
        return None
    rows.read()  # Keras reads its data before the callbacks begin
    if session.kind == "test":
        LAST_LOGS.of(model), LOGS_IN_ORDER.of(model)
    return InOrder(RowBatches(rows, int(size)), model, session, journal)


def dataset_in_order(
    model: keras.Model,
    session: Session,
    given: dict[str, Any],
    function_of: Callable[[str], Any],
    journal: Journal,
) -> InOrder | None:
    """The batches of a `tf.data` dataset for `predict`; None where Keras has to read it, or is watched.

    The arguments are those of `rows_in_order`.
    """
    if not (session.ahead and predict_data is not None and predict_data.takes(given["x"])):
        return None
    batches = DatasetBatches(given["x"], given["steps"], session)
    # Keras would run as many as `steps_per_execution` in one call, and call that a step.
    if not batches.possible or keras2.steps_per_execution(model) != 1:
        return None
    if not isinstance(function_of("predict"), PredictFunction):
        return None
    return InOrder(batches, model, session, journal)


@filtered
def predict_in_order(model: keras.Model, batches: InOrder, given: dict[str, Any]) -> Any:
    """What `model.predict` returns; `given` are all its arguments, without a `CallbackList`."""
    shown = _callbacks(model, batches, given)
    model.make_predict_function()
    model.stop_predicting = False
    shown.on_predict_begin()
    made = batches.runner.gathered(batches.batches.length)
    batches.run(shown, lambda: model.stop_predicting, made.add)
    shown.on_predict_end()
    if batches.done:
        batch_outputs = made.result()
    return batch_outputs  # which no batch has given where there is none: plain Keras' error, too


@filtered
def evaluate_in_order(model: keras.Model, batches: InOrder, given: dict[str, Any]) -> Any:
    """What `model.evaluate` returns for arrays; `given` are all its arguments, without callbacks that watch batches."""
    shown = given["callbacks"]
    if not isinstance(shown, keras.callbacks.CallbackList):
        shown = _callbacks(model, batches, given)
    model.make_test_function()
    model.stop_evaluating = False
    shown.on_test_begin()
    model.reset_metrics()
    batches.run(shown, lambda: model.stop_evaluating)
    logs = last_logs(model, batches.outputs)
    shown.on_test_end(logs)
    return logs if given["return_dict"] else logs_in_order(model, logs)


def _callbacks(model: keras.Model, batches: InOrder, given: dict[str, Any]) -> keras.callbacks.CallbackList:
    verbose = given["verbose"]
    return keras.callbacks.CallbackList(
        given["callbacks"], add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=batches.batches.told, model=model
    )
