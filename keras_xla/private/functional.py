"""Models that are what their graph of layers says: Keras does not export their class."""

from typing import Any

from keras_xla.private.keras import is_of_keras


def is_graph(model: Any) -> bool:
    """Whether a model is what its graph says: functional or a built Sequential, without a `call` of its own."""
    names = ("Functional", "Sequential")
    kind: Any = type(model)
    kinds = [k for k in kind.__mro__ if k.__name__ in names and is_of_keras(k)]
    return bool(kinds) and kind.call is kinds[0].call and bool(getattr(model, "inputs", None))
