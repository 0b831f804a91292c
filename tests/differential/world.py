"""What a scenario runs in, on one side: a model, its data, a folder, and the list of all that was seen."""

import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.differential.data import Data, Given
from tests.differential.models import KINDS, Kind
from tests.differential.ways import Side


class World:
    """One side of a scenario that runs.

    Attributes:
        events: `(label, value)` of everything that was seen, in order.
    """

    def __init__(self, kind: str, dtype: str, side: Side, folder: pathlib.Path):
        self.kind: Kind = KINDS[kind]
        self.side, self.folder = side, folder
        self.events: list[tuple[str, Any]] = []
        self.optimizer = "sgd"
        self._given: dict[Data, Given] = {}
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype)
        try:
            self.model = self.kind.build()
        finally:
            keras.config.set_dtype_policy(before)

    def given(self, data: Data) -> Given:
        """The rows of that description: the same objects at every call."""
        if data not in self._given:
            self._given[data] = Given(data, self.kind)
        return self._given[data]

    def note(self, label: str, value: Any) -> None:
        self.events.append((label, seen(value)))

    def state(self) -> dict[str, list[np.ndarray]]:
        """All variables of the model."""
        optimizer = self.model.optimizer
        return {
            "weights and seeds": self.model.variables,
            "optimizer": optimizer.variables if optimizer is not None else [],
            "metrics": self.model.metrics_variables,
        }


def seen(value: Any) -> Any:
    """A value that stays as it is now: NumPy's for tensors and variables."""
    if isinstance(value, keras.callbacks.History):
        return {"epoch": list(value.epoch), "history": seen(value.history), "params": dict(value.params)}
    if isinstance(value, dict):
        return {name: seen(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [seen(each) for each in value]
    if isinstance(value, tf.RaggedTensor):
        return {"ragged": value.to_list()}
    if isinstance(value, tf.Tensor):
        return {"tensor": np.array(value)}
    if isinstance(value, keras.Variable | np.ndarray):
        return np.array(value)
    return value
