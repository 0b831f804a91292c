"""`fit` on arrays without an input pipeline: batches are gathered in the graph that trains on them, in Keras' order."""

import math
from typing import Any

import keras
import numpy as np

from keras_xla.backend.steps import orders
from keras_xla.training.steps.arrays import Rows, takes


class Feed:
    """The rows of arrays as `fit` takes them, epoch by epoch.

    Args:
        rows: The data.
        shuffle: Whether every epoch has an order of its own: the one that it has in Keras.
    """

    def __init__(self, rows: Rows, shuffle: bool):
        self._rows, self._done, self._order = rows, 0, None
        self._orders = orders(rows.rows) if shuffle else None

    def begin(self) -> None:
        """An epoch begins."""
        self._done, self._order = 0, self._orders and next(iter(self._orders))

    def run(self, runner, count: int) -> tuple[Any, int]:
        """Train on the next batches; the outputs of the last, and how many there were."""
        rows, first = self._rows, self._done * self._rows.size
        size, count = (rows.size, min(count, rows.full - self._done)) if self._done < rows.full else (rows.rest, 1)
        outputs, ran = runner.run_rows_for_last(rows.batch, size, first, count, self._order, alike=not rows.rest)
        self._done += ran
        return outputs, ran


def without_pipeline(given: dict[str, Any]) -> tuple[Rows, dict[str, Any]] | None:
    """What `fit` shall be called with so that it makes no pipeline for the data, but numbers of rows that nobody reads.

    Args:
        given: All arguments of `fit`.

    Returns:
        The data, and arguments with which Keras calls its step function as often as with the given ones. None where
        the data are not dense arrays, or Keras would do more than cut batches.
    """
    data = x, y, weights = given["x"], given["y"], given["sample_weight"]
    several = weights is not None and (keras.tree.is_nested(y) or keras.tree.is_nested(weights))
    if several or given["class_weight"] is not None or given["shuffle"] not in (True, False):
        return None
    if not takes(*data, steps=given["steps_per_epoch"]):
        return None
    rows = len(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))
    given = {**given, "y": None, "sample_weight": None}
    if given["validation_split"] and given["validation_data"] is None:
        kept = math.floor(rows * (1 - given["validation_split"]))
        if not 0 < kept < rows:
            return None
        given |= {"validation_data": _cut(data, slice(kept, None)), "validation_split": 0.0}
        data, rows = _cut(data, slice(kept)), kept
    return Rows(*data, given["batch_size"]), {**given, "x": np.arange(rows)}


def _cut(data: tuple, where: slice) -> tuple:
    return keras.tree.map_structure(lambda x: None if x is None else x[where], data)
