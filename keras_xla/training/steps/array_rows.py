"""Arrays that stay in memory: Keras' pipeline delivers the numbers of their rows, and the step gathers the rows."""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_xla.backend.row_numbers import MOST_OWNERS, numbered
from keras_xla.backend.steps import TakingRows

BATCH_SIZE_TYPES = int, np.int32, np.int64  # types of numbers of rows that Keras takes for a batch
_OWNERS = itertools.count(1)


def takes(x: Any, *others: Any) -> bool:
    """Whether structures of arrays can stay in memory.

    That is for dense numpy arrays of numbers, all with the same number of rows; Nones do not count, but in `x` there
    has to be an array.
    """
    if all(leaf is None for leaf in keras.tree.flatten(x)):
        return False
    leaves = [leaf for leaf in keras.tree.flatten((x, *others)) if leaf is not None]
    if not all(isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "fiub" for leaf in leaves):
        return False
    if any(leaf.dtype.itemsize > 8 for leaf in leaves):  # Keras refuses NumPy's longdouble
        return False
    return len({len(leaf) for leaf in leaves}) == 1 and len(leaves[0]) > 0


class ArrayRows:
    """Arrays in memory, with the numbers of their rows.

    `owner` is the number of these arrays, which their row numbers carry; `rows` is how many rows there are.
    """

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None):
        self._data: Any = x, y, sample_weight
        self.owner = next(_OWNERS) % MOST_OWNERS  # whoever predicts for hours comes that far
        self.rows = len(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))

    @functools.cached_property
    def batch(self) -> Any:
        """All rows as tensors in the structure of a batch, with the values that the arrays have at the first look.

        What is changed in them later does not count. Keras' own pipeline looks when it is made: as `fit` begins, and
        for validation data at the first validation.
        """
        (x, y, sample_weight), self._data = self._data, None
        x, y, sample_weight = (
            keras.tree.map_structure(_as_keras_does, keras.tree.lists_to_tuples(each)) for each in (x, y, sample_weight)
        )
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def read(self) -> None:
        """Look at the arrays now."""
        self.batch  # noqa: B018

    def numbers(self) -> dict[str, np.ndarray]:
        """What Keras is given as `x` in place of all data."""
        return numbered(self.rows, self.owner)


def array_rows(given: Mapping[str, Any]) -> ArrayRows | None:
    """The `x`, `y` and `sample_weight` among the arguments of a call as arrays in memory.

    None where they are not dense arrays, or Keras makes sample weights of them.
    """
    data = _, y, weights = given["x"], given.get("y"), given.get("sample_weight")
    if weights is not None and (keras.tree.is_nested(y) or keras.tree.is_nested(weights)):
        return None
    if given.get("class_weight") is not None or not takes(*data):
        return None
    return ArrayRows(*data)


def with_validation_cut_off(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of `fit` with `validation_data` in place of a `validation_split`; None where Keras would refuse.

    Both parts are views of the arrays: like Keras, which reads the second one at the first validation. Only floats of
    another width than Keras' float type are copied, as Keras does where it splits.
    """
    data = given["x"], given["y"], given["sample_weight"]
    if not takes(*data):
        return None
    rows = len(next(leaf for leaf in keras.tree.flatten(data) if leaf is not None))
    kept = math.floor(rows * (1 - given["validation_split"]))
    if not 0 < kept < rows:
        return None
    first = keras.tree.map_structure(lambda x: None if x is None else x[:kept], data)
    second = keras.tree.map_structure(lambda x: None if x is None else _held_back(x[kept:]), data)
    return {
        **given,
        **dict(zip(("x", "y", "sample_weight"), first, strict=True)),
        "validation_data": second,
        "validation_split": 0.0,
    }


class BatchesForOthers:
    """Has a step function that is not ours see batches where Keras' pipeline delivers row numbers.

    Args:
        model: The model.
        attribute: Its function's name.
        arrays: By the number that their row numbers carry, those that are kept in memory now.
    """

    def __init__(self, model: keras.Model, attribute: str, arrays: Mapping[int, ArrayRows]):
        self._model, self._attribute, self._arrays = model, attribute, arrays
        self._put: Any = None

    def begin(self) -> None:
        """To be called before a step."""
        function = getattr(self._model, self._attribute, None)
        if self._arrays and function is not None and not getattr(function, "takes_rows", False):
            self._put = TakingRows(function, self._arrays)
            setattr(self._model, self._attribute, self._put)

    def end(self) -> None:
        """Give the model back what was its own."""
        put, self._put = self._put, None
        there = getattr(self._model, self._attribute, None) is put
        if put is not None and there:
            setattr(self._model, self._attribute, put.function)


def _held_back(rows: np.ndarray) -> np.ndarray:
    other = rows.dtype.kind == "f" and rows.dtype != keras.config.floatx()
    return rows.astype(keras.config.floatx()) if other else rows


def _as_keras_does(array: np.ndarray | None) -> Any:
    """A tensor; floats of whatever width become Keras' float type, as its data adapters have it."""
    if array is None:
        return None
    dtype = keras.config.floatx() if array.dtype.kind == "f" else array.dtype
    with keras.device("cpu:0"):
        return keras.ops.convert_to_tensor(array, dtype=dtype)
