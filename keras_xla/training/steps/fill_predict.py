"""`predict` on arrays through XLA: the last batch filled up with a row of its own, so that one executable is enough."""

from typing import Any

import keras

from keras_xla.backend.steps import is_distributed
from keras_xla.training.session import capped, watched
from keras_xla.training.steps.array_rows import SIZES, array_rows
from keras_xla.training.steps.last_batch import filled_up
from keras_xla.training.steps.rowwise import rowwise_in_inference


def fill_last_batch(model: keras.Model, given: dict[str, Any]) -> int | None:
    """Repeat the last row of arrays until the last batch is a full one.

    Args:
        model: Runs through XLA as a whole, or plainly.
        given: All arguments of `predict`; `x` is changed.

    Returns:
        How many rows of the outputs count; None where the arrays are left as they are.
    """
    size = given["batch_size"] or 32
    if given["steps"] is not None or capped() or is_distributed(model):  # replicas may differ in moving statistics
        return None
    if not model.jit_compile or "predict_step" in vars(model):  # a step of the user's own may mix rows
        return None
    if not isinstance(size, SIZES) or watched(given["callbacks"], "predict"):  # Keras says what is wrong with a size
        return None
    rows = array_rows(given)
    if rows is None or rows.rows <= size or rows.rows % size == 0 or not rowwise_in_inference(model):
        return None
    given["x"] = filled_up(given["x"], rows.rows + -rows.rows % size)
    return rows.rows
