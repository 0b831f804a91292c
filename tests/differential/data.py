"""Data of every kind that `fit` takes, from the rows of a kind of model."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.differential.models import IDS, Kind
from tests.differential.shown import Shown

SEED = 7
RAISED = "raised by the script"
ARRAYS, KNOWN = ("arrays", "tensors"), ("arrays", "tensors", "dataset", "shuffled", "dropped", "sequence")
UNKNOWN = ("unknown", "filtered", "generator", "endless", "repeated")
FORMS = KNOWN + UNKNOWN


@dataclass(frozen=True, repr=False)
class Data(Shown):
    """Some rows, and how they are handed over.

    Attributes:
        rows: How many.
        batch: Rows of a batch; the last one may have fewer.
        form: `"arrays"` of NumPy, `"tensors"`, a `tf.data` `"dataset"`, one `"shuffled"`, one with the rest
            `"dropped"`, a `"sequence"` (`PyDataset`); without a length: `"unknown"` and `"filtered"` datasets, a Python
            `"generator"`, an `"endless"` one, a dataset that is `"repeated"` for ever.
        weighted: Whether every row has a weight.
        spoiled: What is wrong with it: `"label"`, `"id"`, `"value"` or `"width"`, or it is to `"raise"`; see `spoil`.
        seed: Other rows.
        length: Of the rows, where the kind of model takes any; 0 for the longest.
    """

    rows: int = 20
    batch: int = 8
    form: str = "arrays"
    weighted: bool = False
    spoiled: str = ""
    seed: int = 0
    length: int = 0

    @property
    def arrays(self) -> bool:
        """Whether `fit` is to cut the batches."""
        return self.form in ARRAYS

    @property
    def endless(self) -> bool:
        return self.form in ("endless", "repeated")

    @property
    def steps(self) -> int:
        """How many batches there are, or would be in a pass."""
        return self.rows // self.batch if self.form == "dropped" else math.ceil(self.rows / self.batch)


class Given:
    """The rows of a `Data`, made once on each side: later actions see what earlier ones changed in place."""

    def __init__(self, data: Data, kind: Kind):
        rng = np.random.default_rng((SEED, data.seed))
        x, y = kind.rows(rng, data.rows)
        if data.length:
            x, y = x[:, : data.length], y if y.ndim == 1 else y[:, : data.length]
        weights = rng.uniform(0.5, 1.5, data.rows).astype("float32") if data.weighted else None
        self.data, self.kind = data, kind
        self.x, self.y = spoil(x, y, data.spoiled)
        self.weights = weights
        if data.weighted and isinstance(self.y, dict):
            self.weights = {name: weights for name in self.y}
        self._made: dict[bool, Any] = {}

    @property
    def triple(self) -> tuple:
        """`(x, y)` or `(x, y, weights)`."""
        return (self.x, self.y) if self.weights is None else (self.x, self.y, self.weights)

    def arguments(self, targets: bool = True) -> dict[str, Any]:
        """For `fit` and `evaluate`; for `predict` without targets."""
        if self.data.arrays:
            named = dict(zip(("x", "y", "sample_weight"), self.triple, strict=False))
            if self.data.form == "tensors":
                named = keras.tree.map_structure(tensor, named)
            return named if targets else {"x": named["x"]}
        return {"x": self.made(targets)}

    def made(self, targets: bool = True) -> Any:
        """The same dataset at every call; a new generator."""
        structure = self.triple if targets else self.x
        if self.data.form in ("generator", "endless"):
            return self.of(structure)
        if targets not in self._made:
            self._made[targets] = self.of(structure)
        return self._made[targets]

    def of(self, structure: Any) -> Any:
        form, size = self.data.form, self.data.batch
        if form == "sequence":
            return Batches(structure, size, self.data.spoiled == "raise")
        if form in ("generator", "endless"):
            return batches(structure, size, form == "endless", self.data.spoiled == "raise")
        structure = keras.tree.map_structure(tensor, structure)
        if not isinstance(structure, tuple):
            structure = (structure,)
        structure = tuple(
            tuple(each) if isinstance(each, list) else each for each in structure
        )  # lists would be stacked
        dataset = tf.data.Dataset.from_tensor_slices(structure)
        if form == "shuffled":
            dataset = dataset.shuffle(self.data.rows, seed=SEED)
        dataset = dataset.batch(size, drop_remainder=form == "dropped")
        if form == "unknown":
            dataset = dataset.unbatch().batch(size)
        if form == "filtered":
            dataset = dataset.filter(lambda *_: True)
        return dataset.repeat() if form == "repeated" else dataset

    def batch(self, number: int) -> tuple:
        """One batch, as `train_on_batch` takes it."""
        first = number * self.data.batch % self.data.rows
        return cut(self.triple, slice(first, first + self.data.batch))


class Batches(keras.utils.PyDataset):
    """Another order of the batches at every epoch."""

    def __init__(self, structure, size, raises):
        super().__init__()
        self._raises = raises
        self._structure, self._size, self._turn = structure, size, 0
        self._rows = len(keras.tree.flatten(structure)[0])

    def __len__(self):
        return math.ceil(self._rows / self._size)

    def __getitem__(self, number):
        if self._raises and number == len(self) - 1:
            raise RuntimeError(RAISED)
        first = (number + self._turn) % len(self) * self._size
        made = cut(self._structure, slice(first, first + self._size))
        return made if isinstance(made, tuple) else (made,)

    def on_epoch_end(self):
        self._turn += 1


def batches(structure: Any, size: int, endless: bool, raises: bool) -> Iterator:
    rows = len(keras.tree.flatten(structure)[0])
    while True:
        for first in range(0, rows, size):
            if raises and first + size >= rows:
                raise RuntimeError(RAISED)
            made = cut(structure, slice(first, first + size))
            yield made if isinstance(made, tuple) else (made,)
        if not endless:
            return


def tensor(x: Any) -> Any:
    """Of an array; what is a tensor, such as a ragged one, stays."""
    return x if isinstance(x, tf.RaggedTensor) else tf.constant(x)


def cut(structure: Any, where: slice) -> Any:
    return keras.tree.map_structure(lambda x: x[where], structure)


def spoil(x: Any, y: Any, how: str) -> tuple[Any, Any]:
    """Rows that plain Keras refuses.

    Args:
        how: `""` for none; a `"label"` or an `"id"` out of range, a `"value"` that an assertion refuses, each late
            in the rows; rows of another `"width"`; Python that has an error to `"raise"` in place of the last batch.
    """
    late = len(keras.tree.flatten(y)[0]) * 3 // 4
    if how == "label":
        y[late] = 10
    if how == "id":
        x[late, 1] = IDS + 50
    if how == "value":
        x[late, 1] = 1000.0
    if how == "width":
        x = np.concatenate([x, x[..., :2]], -1)
    return x, y
