"""How the weights of a model begin."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.private.keras.variables import forget_unmade


class Later:
    """An initializer whose values are read when the variable is made."""

    def __init__(self) -> None:
        self.read: Callable[[], Any] | None = None

    def __call__(self, shape: tuple, dtype: Any = None) -> Any:
        """The values, which are then let go of: those of an array may stand where they are."""
        read, self.read = self.read, None
        if read is None:
            raise RuntimeError("Received nothing to make a weight of; give each variable its `Later.read`.")
        values = read()
        return tensor_of(values, dtype) if _is_transposed(values) else backend.taken_over(values, dtype)


def tensor_of(values: Any, dtype: Any) -> Any:
    """A tensor of values.

    A transposed array is copied to a GPU as it lies in memory, and transposed there: NumPy takes far longer.
    """
    if not backend.on_cpu() and _is_transposed(values):
        return ops.transpose(ops.convert_to_tensor(values.T, dtype))
    return ops.convert_to_tensor(values, dtype)


def _is_transposed(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.ndim == 2 and not values.flags.c_contiguous


Unmade = dict[int, Later]  # by the id of a variable
_UNMADE: ContextVar[Unmade | None] = ContextVar("unmade", default=None)


@contextlib.contextmanager
def unmade_weights() -> Iterator[Unmade]:
    """The variables of models that are built here are made at the end, each with values that are read for it then.

    So no weight is ever in memory twice, as it would be if it began with other values. After an error none is made.

    Raises:
        RuntimeError: inside another `StatelessScope`.
    """
    unmade: Unmade = {}
    try:
        with keras.StatelessScope():  # in which Keras makes no variables
            token = _UNMADE.set(unmade)
            try:
                yield unmade
            except BaseException:
                forget_unmade(set(unmade))
                raise
            finally:
                _UNMADE.reset(token)
        if any(later.read is not None for later in unmade.values()):
            raise RuntimeError(
                "A model cannot be loaded or quantized inside a keras.StatelessScope, such as while Keras works out "
                "the shapes of another layer. Make it before, in the layer's __init__."
            )
    except BaseException:
        forget_unmade(set(unmade))  # which reading has not reached
        raise


class WeightedLayer(keras.layers.Layer):
    """A layer whose weights can be made later, see `unmade_weights`."""

    def add_weight(self, shape: tuple, initializer: Any = None, **kwargs: Any) -> keras.Variable:
        """As Keras' own."""
        unmade = _UNMADE.get()
        if unmade is None:
            return super().add_weight(shape=shape, initializer=initializer, **kwargs)
        later = Later()
        variable = super().add_weight(shape=shape, initializer=later, **kwargs)
        unmade[id(variable)] = later
        return variable
