"""`predict` and `evaluate` on arrays without an input pipeline: there is nothing to shuffle and nothing to wait for."""

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Pace
from keras_xla.training.steps.rowwise import rowwise_in_inference
from keras_xla.training.steps.run_ahead import EXECUTION

MOST = 1024  # batches of one call
LARGE = 2**18  # numbers in a batch's outputs from which on joining them in the graph costs more than a call for each


def takes(*arrays: Any, steps: int | None = None) -> bool:
    """Whether structures of arrays can be run without a pipeline.

    That is for dense numpy arrays of numbers, all with the same number of rows; Nones do not count.
    """
    leaves = [leaf for leaf in keras.tree.flatten(arrays) if leaf is not None]
    if steps is not None or capped() or not leaves:
        return False
    if not all(isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "fiub" for leaf in leaves):
        return False
    return len({len(leaf) for leaf in leaves}) == 1 and len(leaves[0]) > 0


def capped() -> bool:
    """Whether Keras is told to end every pass over data after some steps."""
    return getattr(keras.config, "max_steps_per_epoch", lambda: None)() is not None


def next_count(ran: int, seconds: float, outputs: Any) -> int:
    """How many batches the next call may be for, after one of which it is known how long it took and what it gave."""
    made = [x.shape for x in keras.tree.flatten(outputs) if x is not None]
    if sum(math.prod(n or 1 for n in shape) for shape in made) > LARGE * ran:  # None: of ragged ones
        return 1
    return max(1, min(MOST, int(ran * EXECUTION / max(seconds, 1e-6))))


class Rows:
    """Arrays as tensors in the structure of a batch, all of their rows in it.

    Args:
        x: Inputs; `y` and `sample_weight` likewise, for `evaluate`.
        batch_size: Rows of a batch; 32 by default.
    """

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None, batch_size: int | None = None):
        x, y, sample_weight = (
            keras.tree.map_structure(_as_keras_does, keras.tree.lists_to_tuples(each)) for each in (x, y, sample_weight)
        )
        self.batch = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
        self.size = batch_size or 32
        self.rows = len(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))
        self.full, self.rest = divmod(self.rows, self.size)
        self.steps = math.ceil(self.rows / self.size)


def run(
    rows: Rows,
    kind: str,
    runner,
    many: Callable[..., Any],
    journal: Journal,
    pace: Pace | None,
    shown: keras.callbacks.CallbackList,
    stopped: Callable[[], bool],
) -> Iterator[tuple[Any, int]]:
    """Run all batches, many of them at a time; callbacks see only the first and the last of those.

    Args:
        rows: The data.
        kind: `"test"` or `"predict"`.
        runner: The backend's.
        many: The runner's `run_rows` or `run_rows_for_last`.
        journal: Is told how long steps took.
        pace: Is told of the steps.
        shown: The callbacks.
        stopped: Whether a callback wants it to end.

    Yields:
        Outputs, and of how many batches they are.
    """
    done, count = 0, 1
    begin, end = getattr(shown, f"on_{kind}_batch_begin"), getattr(shown, f"on_{kind}_batch_end")

    def told(output):
        return {"outputs": output} if kind == "predict" else output

    while done < rows.full and not stopped():
        count = min(count, rows.full - done)
        begin(done)
        start = time.perf_counter()
        outputs, ran = many(rows.batch, rows.size, done * rows.size, count)
        seconds = time.perf_counter() - start
        done += ran
        if pace is not None:
            pace.done += ran
        end(done - 1, told(outputs))
        yield outputs, ran
        if runner.settled:
            journal.ran(kind, runner.way, ran, seconds)
            count = next_count(ran, seconds, outputs)
    if rows.rest and not stopped():
        begin(rows.full)
        outputs, _ = many(rows.batch, rows.rest, rows.full * rows.size, 1)
        end(rows.full, told(outputs))
        yield outputs, 1


def predict_arrays(
    model: keras.Model, driver, pace: Pace | None, x: Any, batch_size: int | None, verbose, steps: None, callbacks
) -> Any:
    """What `model.predict(x, batch_size, verbose, callbacks=callbacks)` returns.

    Args:
        model: A built or unbuilt Keras model.
        driver: Its predict function.
        pace: Of this call.
        x: Arrays that `takes` accepts.
        batch_size: Rows of a batch; 32 by default.
        verbose: As in `predict`.
        steps: None.
        callbacks: As in `predict`; none that watches batches.
    """
    rows = Rows(x, batch_size=batch_size)
    shown = keras.callbacks.CallbackList(
        callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=rows.steps, model=model
    )
    model.stop_predicting = False
    shown.on_predict_begin()
    runner = driver.runner
    made, stopped = runner.gathered(rows.rows / rows.size), lambda: model.stop_predicting
    for outputs, ran in run(rows, "predict", runner, runner.run_rows, driver.journal, pace, shown, stopped):
        made.add(outputs, ran)
    shown.on_predict_end()
    return made.result()


def evaluate_arrays(
    model: keras.Model, driver, pace: Pace, rows: Rows, verbose="auto", callbacks=None, return_dict: bool = False
) -> Any:
    """What `model.evaluate(x, y, batch_size, verbose, sample_weight, callbacks=callbacks)` returns.

    Args:
        model: A compiled Keras model.
        driver: Its test function.
        pace: Of this call.
        rows: The data.
        verbose: As in `evaluate`.
        callbacks: As in `evaluate`; none that watches batches.
        return_dict: As in `evaluate`.
    """
    shown = callbacks
    if not isinstance(shown, keras.callbacks.CallbackList):
        shown = keras.callbacks.CallbackList(
            callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=rows.steps, model=model
        )
    model.stop_evaluating = False
    shown.on_test_begin()
    model.reset_metrics()
    runner = driver.runner
    many = functools.partial(runner.run_rows_for_last, alike=not rows.rest)
    for outputs, _ in run(rows, "test", runner, many, driver.journal, pace, shown, lambda: model.stop_evaluating):
        logs = outputs
    logs = _numbers(model._get_metrics_result_or_logs(logs))
    shown.on_test_end(logs)
    return logs if return_dict else model._flatten_metrics_in_order(logs)


def filled_up(model: keras.Model, x: Any, batch_size: int | None) -> tuple[Any, int | None]:
    """Arrays with the last row repeated until the last batch is a full one, so that `predict` compiles one executable.

    Args:
        model: Whose outputs those rows must not change: one of Keras' own layers only, which in inference treat every
            row alone.
        x: Arrays that `takes` accepts.
        batch_size: Rows of a batch; 32 by default.

    Returns:
        The arrays, and how many rows of the outputs count; as they came, and None, where that does not hold or
        there is one batch only.
    """
    size, rows = batch_size or 32, len(keras.tree.flatten(x)[0])
    missing = -rows % size
    if not missing or rows < size or not rowwise_in_inference(model):
        return x, None
    return keras.tree.map_structure(lambda array: np.concatenate([array, np.repeat(array[-1:], missing, 0)]), x), rows


def _numbers(logs: dict) -> dict:
    """Logs as callbacks get them: flat, sorted by name, Python's floats where they are numbers."""
    flat = {}
    for name, value in sorted(logs.items()):
        if isinstance(value, dict):
            flat |= _numbers(value)
        else:
            flat[name] = float(value) if np.ndim(value) == 0 else value
    return flat


def _as_keras_does(array: np.ndarray | None):
    """A tensor; floats of whatever width become Keras' float type, as its data adapters have it."""
    if array is None:
        return None
    dtype = keras.config.floatx() if array.dtype.kind == "f" else array.dtype
    with keras.device("cpu:0"):
        return keras.ops.convert_to_tensor(array, dtype=dtype)
