"""`predict` on arrays without an input pipeline: there is nothing to shuffle and nothing to wait for."""

import math
import time
from typing import Any

import keras
import numpy as np

from keras_xla.training.driver import EXECUTION, PredictDriver

MOST = 1024  # batches of one call


def takes(x: Any, batch_size=None, verbose="auto", steps=None, callbacks=None) -> bool:
    """Whether `predict_arrays` can do what `predict` with these arguments does.

    That is for dense numpy arrays of numbers, all with the same number of rows.
    """
    capped = getattr(keras.config, "max_steps_per_epoch", lambda: None)() is not None
    if steps is not None or capped or hasattr(callbacks, "callbacks"):
        return False
    leaves = keras.tree.flatten(x)
    if not all(isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "fiub" for leaf in leaves):
        return False
    return len({len(leaf) for leaf in leaves}) == 1 and len(leaves[0]) > 0


def predict_arrays(
    model: keras.Model, driver: PredictDriver, x: Any, batch_size: int | None, verbose, steps: None, callbacks: list
) -> Any:
    """What `model.predict(x, batch_size, verbose, callbacks=callbacks)` returns.

    Args:
        model: A built or unbuilt Keras model.
        driver: Its predict function.
        x: Arrays that `takes` accepts.
        batch_size: Rows of a batch; 32 by default.
        verbose: As in `predict`.
        steps: None.
        callbacks: As in `predict`; none that watches batches.
    """
    runner, size, rows = driver.runner, batch_size or 32, len(keras.tree.flatten(x)[0])
    full, rest = divmod(rows, size)
    shown = keras.callbacks.CallbackList(
        callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=math.ceil(rows / size), model=model
    )
    arrays = keras.tree.lists_to_tuples(keras.tree.map_structure(_as_keras_does, x))
    arrays = (arrays,) if isinstance(arrays, tuple) else arrays
    model.stop_predicting = False
    shown.on_predict_begin()
    outputs, done, count = [], 0, 1
    while done < full and not model.stop_predicting:
        count = min(count, full - done)
        shown.on_predict_batch_begin(done)
        start = time.perf_counter()
        outputs.append(runner.run_rows(arrays, size, done, count))
        seconds = time.perf_counter() - start
        done += count
        shown.on_predict_batch_end(done - 1, {"outputs": outputs[-1]})
        if runner.settled:
            driver.journal.ran("predict", runner.way, count, seconds)
            count = max(1, min(MOST, int(count * 2 * EXECUTION / max(seconds, 1e-6))))
    if rest and not model.stop_predicting:
        last = keras.tree.map_structure(lambda array: array[full * size :], arrays)
        outputs.append(runner.run_batch(last))
        shown.on_predict_batch_end(full, {"outputs": outputs[-1]})
    shown.on_predict_end()
    return keras.tree.map_structure(lambda *parts: np.concatenate(list(map(np.asarray, parts))), *outputs)


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
    own = all(type(layer).__module__.startswith("keras.") for layer in model._flatten_layers())
    missing = -rows % size
    if not own or not missing or rows < size:
        return x, None
    return keras.tree.map_structure(lambda array: np.concatenate([array, np.repeat(array[-1:], missing, 0)]), x), rows


def _as_keras_does(array: np.ndarray):
    """A tensor; floats of whatever width become Keras' float type, as its data adapters have it."""
    dtype = keras.config.floatx() if array.dtype.kind == "f" else array.dtype
    return keras.ops.convert_to_tensor(array, dtype=dtype)
