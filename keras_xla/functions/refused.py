"""What `jit` refuses: Python around functions that are compiled already."""

from collections.abc import Callable
from typing import Any

import keras

from keras_xla.backend.unwrap import without_partial

_LOOPS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def refuse_what_compiles_itself(fn: Callable) -> None:
    """Raise `TypeError` for a layer that compiles itself, or a method of it, and for Keras' own loops over batches."""
    fn = without_partial(fn)
    owner: Any = getattr(fn, "__self__", fn)
    name = getattr(fn, "__name__", "")
    if getattr(owner, "compiles_itself", False) is True:
        raise TypeError(
            f"keras_xla.jit received {name or 'a layer'} of {type(owner).__name__}, which compiles itself. Call it as "
            "it is, such as layer.generate(inputs)."
        )
    loops = isinstance(owner, keras.Model) and name in _LOOPS
    if loops and getattr(type(owner), name) is getattr(keras.Model, name):
        raise TypeError(
            f"keras_xla.jit received {name} of the model {owner.name!r}, which runs steps that are compiled by "
            "themselves. Compile the model with keras_xla.compile(model, ...), or pass the model itself."
        )
