"""`evaluate` and `predict` on arrays that nobody shuffles: no input pipeline, and many batches in one graph.

Keras' own methods make a pipeline for every call and come back to Python for every batch. That takes most of the time
of a small model, and tens of milliseconds of a call with one batch. So what they do around the steps is done here.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from keras_xla.backend.execution import Execution
from keras_xla.backend.row_numbers import MARK, are_numbers, owner_of
from keras_xla.backend.steps import DATA_ENDED
from keras_xla.private.keras.trainer import CACHED_EVALUATION, LAST_LOGS, LOGS_IN_ORDER, last_logs, logs_in_order
from keras_xla.private.names import otherwise
from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session
from keras_xla.training.steps.array_rows import BATCH_SIZE_TYPES, ArrayRows, array_rows
from keras_xla.training.steps.predict_groups import next_count
from keras_xla.training.steps.run_ahead import PredictFunction, StepFunction, run_batch


@contextlib.contextmanager
def _data_may_end() -> Iterator[None]:
    """Where a step or a callback says that data have ended, the pass ends with Keras' warning."""
    try:
        yield
    except DATA_ENDED:
        warnings.warn(
            "Your input ran out of data; interrupting training. Make sure that your dataset or generator can generate "
            "at least `steps_per_epoch * epochs` batches. You may need to use the `.repeat()` function when building "
            "your dataset.",
            stacklevel=2,
        )


class InOrder:
    """The batches of rows of arrays, in groups that grow as far as the callbacks may wait.

    Attributes:
        steps: How many there are.
        outputs: Of the last group; empty before the first.
    """

    def __init__(
        self, kind: str, rows: ArrayRows, batch_size: int, model: keras.Model, session: Session, journal: Journal
    ):
        self._kind, self._rows, self._size = kind, rows, batch_size
        self._model, self._session, self._journal = model, session, journal
        self._runner = self._function().runner
        self.steps = session.steps = math.ceil(rows.rows / batch_size)
        self.outputs: Any = {}

    def gathered(self) -> Any:
        """What the outputs of all batches are put into."""
        return self._runner.gathered(self._rows.rows / self._size)

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
        full, rest = divmod(self._rows.rows, self._size)
        done, count = 0, 1
        while done < self.steps and not (done and stopped()):  # Keras looks behind the first batch
            size, count = (self._size, min(count, full - done)) if done < full else (rest, 1)
            made, seconds = self._group(shown, size, done, count, take, alike=not rest)
            done += made.batches
            if made.settled:
                self._journal.ran(self._kind, made.way, made.batches, seconds)
                ahead = self._session.ahead and not made.calls_python
                count = next_count(made.batches, seconds, made.outputs) if ahead else 1

    def _function(self) -> Any:
        """The model's, which Keras asks for at every step: a callback may compile the model again."""
        return getattr(self._model, f"{self._kind}_function")

    def _group(self, shown, size: int, done: int, count: int, take: Callable[[Any, int], Any], alike: bool):
        predicts = self._kind == "predict"
        getattr(shown, f"on_{self._kind}_batch_begin")(done)
        start = time.perf_counter()
        function, first = self._function(), done * self._size
        runner = function.runner if isinstance(function, (StepFunction, PredictFunction)) else None
        if runner is None:
            batch = keras.tree.map_structure(lambda x: None if x is None else x[first : first + size], self._rows.batch)
            made = Execution(run_batch(self._model, self._kind, batch, function), 1, "graph", settled=False)
        else:
            # Plain Keras traces `predict` by the tensors of a batch, and the others by what the pipeline tells of them.
            made = runner.run_rows(self._rows.batch, size, first, count, known=predicts or alike, every=predicts)
        seconds = time.perf_counter() - start
        self._session.done = done + made.batches
        self.outputs = made.outputs
        take(made.outputs, made.batches)
        told = {"outputs": made.outputs} if predicts else made.outputs
        getattr(shown, f"on_{self._kind}_batch_end")(self._session.done - 1, told)
        return made, seconds


@otherwise(None)
def batches_in_order(
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
    return InOrder(session.kind, rows, int(size), model, session, journal)


def predict_in_order(model: keras.Model, batches: InOrder, given: dict[str, Any]) -> Any:
    """What `model.predict` returns for arrays; `given` are all its arguments, without callbacks that watch batches."""
    shown = _callbacks(model, batches, given)
    model.make_predict_function()
    model.stop_predicting = False
    shown.on_predict_begin()
    made = batches.gathered()
    batches.run(shown, lambda: model.stop_predicting, made.add)
    shown.on_predict_end()
    return made.result()


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
        given["callbacks"], add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=batches.steps, model=model
    )
