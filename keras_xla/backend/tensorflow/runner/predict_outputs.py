"""The outputs of many batches of `predict`, put together as they come.

Keras keeps the outputs of all batches, joins them, and copies the result: they are in memory three times. Here each
one is copied to where it belongs and is free again, so that the next batch's outputs are made in its place.
"""

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class Gathered:
    """The outputs of one call of `predict`.

    Args:
        batches: How many there will be, if that is known; the last one counts for as much of a batch as it has rows.
    """

    def __init__(self, batches: float | None = None):
        self._batches = batches
        self._structure: Any = None
        self._lists: Any = None  # the same with a list in the place of each output, as Keras has
        self._columns: list[_Column] = []

    def add(self, outputs: Any, ran: int) -> None:
        """Take the outputs of the next `ran` batches, joined along the first axis."""
        if not self._columns:
            self._lists = keras.tree.map_structure(lambda x: [x is None], outputs)
        # Raises what Keras raises for a None among them, and for a batch whose outputs have another structure.
        keras.tree.map_structure_up_to(outputs, lambda *_: None, self._lists, outputs)
        if not self._columns:
            self._structure = keras.tree.map_structure(lambda _: None, outputs)
            self._columns = [_Column(self._batches and self._batches / ran) for _ in keras.tree.flatten(outputs)]
        for column, part in zip(self._columns, keras.tree.flatten(outputs), strict=True):
            column.add(part)

    def result(self) -> Any:
        """What Keras would return: numpy arrays; ragged tensors where shapes differ beyond the first axis."""
        return keras.tree.pack_sequence_as(self._structure, [column.result() for column in self._columns])


class _Column:
    """One of the outputs, of so many `parts` like the first one, if that is known."""

    def __init__(self, parts: float | None):
        self._expected, self._rows = parts, 0
        self._array: Any = None  # of numpy, once there is one
        self._parts: list = []

    def add(self, part: Any) -> None:
        if self._array is None and not self._parts and self._expected and _dense(part):
            rows = math.ceil(round(self._expected * len(part), 6))
            with contextlib.suppress(MemoryError, ValueError):  # the data may end before it is full
                self._array = np.empty((rows, *part.shape[1:]), part.dtype.as_numpy_dtype)
        if not self._fits(part):
            self._parts.append(part)
            return
        end = self._rows + len(part)
        self._array[self._rows : end] = np.asarray(part)
        self._rows = end

    def _fits(self, part) -> bool:
        if self._array is None or self._parts:
            return False
        alike = part.dtype.as_numpy_dtype == self._array.dtype and part.shape[1:] == self._array.shape[1:]
        return alike and self._rows + len(part) <= len(self._array)

    def result(self) -> Any:
        if self._array is not None and not self._parts:
            return self._array if self._rows == len(self._array) else self._array[: self._rows]
        parts = [] if self._array is None else [tf.constant(self._array[: self._rows])]
        parts += self._parts
        if all(map(_dense, parts)) and len({(x.shape[1:], x.dtype) for x in parts}) == 1:
            return np.concatenate([np.asarray(x) for x in parts])  # `tf.concat` would be copied once more
        made = joined(parts)
        return made.numpy() if isinstance(made, tf.Tensor) else made


def _dense(part: Any) -> bool:
    return isinstance(part, tf.Tensor) and part.shape.rank > 0


def concatenated(parts: Sequence[Any]) -> Any:
    """Tensors along the first axis, two by two: as Keras does with those of `steps_per_execution` batches."""

    def both(one: Any, other: Any) -> Any:
        if one is None:
            return None
        if isinstance(one, tf.SparseTensor):
            return tf.sparse.concat(0, [one, other])
        return tf.concat([one, other], 0) if one.shape.rank else tf.stack([one, other])

    return functools.reduce(both, parts)


def joined(parts: list) -> Any:
    """Tensors of a kind along the first axis, scalars as a vector; ragged where other axes differ, as in Keras."""
    first = parts[0]
    if len(parts) == 1 or first is None:
        return first
    if isinstance(first, tf.SparseTensor):
        return tf.sparse.concat(0, parts)
    if isinstance(first, tf.RaggedTensor):
        return tf.concat(parts, 0)
    if not first.shape.rank:
        return tf.stack(parts)
    same = [len({part.shape[axis] for part in parts}) == 1 for axis in range(1, first.shape.rank)]
    if all(same):
        return tf.concat(parts, 0)
    ragged = len(same) - same[::-1].index(False)  # axes, but for those at the end that all have in common
    return tf.concat([tf.RaggedTensor.from_tensor(part, ragged_rank=ragged) for part in parts], 0)
