"""How the weights of a model begin."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras

_EMPTY: ContextVar[bool] = ContextVar("empty", default=False)


@contextlib.contextmanager
def empty_weights() -> Iterator[None]:
    """Models built here begin with zeros: what they are made for assigns every weight.

    Random numbers for all the weights of a model take longer than reading its checkpoint.
    """
    token = _EMPTY.set(True)
    try:
        yield
    finally:
        _EMPTY.reset(token)


class WeightedLayer(keras.layers.Layer):
    """A layer that `empty_weights` can leave empty."""

    def add_weight(self, shape: tuple, initializer: Any = None, **kwargs: Any) -> keras.Variable:
        """As Keras' own."""
        return super().add_weight(shape=shape, initializer="zeros" if _EMPTY.get() else initializer, **kwargs)
