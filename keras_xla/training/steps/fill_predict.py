"""`predict` on arrays through XLA: the last batch filled up with a row of its own, so that one executable is enough."""

from typing import Any

import keras
import numpy as np

from keras_xla.backend.steps import is_distributed
from keras_xla.private.keras.graphs import is_graph
from keras_xla.private.keras.layers import package_of
from keras_xla.training.session import capped, flat, has_own, watched
from keras_xla.training.steps.array_rows import BATCH_SIZE_TYPES, array_rows
from keras_xla.training.steps.last_batch import filled_up
from keras_xla.training.steps.rowwise import rowwise_in_inference

MOST_BYTES = 2**28  # of arrays that are copied


def fill_last_batch(model: keras.Model, given: dict[str, Any]) -> int | None:
    """Repeat the last row of arrays until the last batch is a full one.

    Args:
        model: Runs through XLA as a whole, or plainly.
        given: All arguments of `predict`; `x` is changed.

    Returns:
        How many rows of the outputs count; None where the arrays are left as they are.
    """
    size = given["batch_size"] or 32
    if given["steps"] is not None or capped():
        return None
    # Replicas may differ in moving statistics, and a batch that devices cannot share is an error.
    if is_distributed(model) or keras.distribution.distribution() is not None:
        return None
    if not model.jit_compile or "predict_step" in vars(model):  # a step of the user's own may mix rows
        return None
    # Keras says what is wrong with a size.
    if not isinstance(size, BATCH_SIZE_TYPES) or watched(given["callbacks"], "predict"):
        return None
    if _is_read_later(given):
        return None
    rows = array_rows(given)
    if rows is None or rows.rows <= size or rows.rows % size == 0 or not rowwise_in_inference(model):
        return None
    if not is_graph(model) and min(x.ndim for x in keras.tree.flatten(given["x"]) if x is not None) < 2:
        return None  # of a model that is not built nobody knows which layers see that
    given["x"] = filled_up(given["x"], rows.rows + -rows.rows % size)
    return rows.rows


def _is_read_later(given: dict[str, Any]) -> bool:
    """Whether a copy of the arrays takes much memory, or a callback may change them before Keras reads a batch."""
    leaves = [leaf for leaf in keras.tree.flatten(given["x"]) if isinstance(leaf, np.ndarray)]
    if any(isinstance(leaf, np.memmap) for leaf in leaves) or sum(leaf.nbytes for leaf in leaves) > MOST_BYTES:
        return True
    others = [each for each in flat(given["callbacks"]) if package_of(type(each)) != "keras_xla"]
    return any(has_own(each, "on_predict_begin") for each in others)
