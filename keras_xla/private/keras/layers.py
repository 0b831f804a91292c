"""Layers of Keras 3: names that it does not promise."""

import types
from typing import Any

import keras

from keras_xla.private.names import KERAS_SEEN, Name, otherwise

FLATTEN = Name(
    "keras.Layer",
    "_flatten_layers",
    "a layer and all those inside of it, at any depth; `layers` has the direct ones only",
    "smaller batches are not filled up, explain does not know layers, and move_to_pipeline does not work",
    KERAS_SEEN,
)
TRACKER = Name(
    "keras.Layer",
    "_tracker",
    "what notes the layers in a layer's attributes; deleting the attribute does not take them off",
    "a layer that was quantized goes on listing its weights in floats, and keeps them in memory",
    KERAS_SEEN,
)
TAKES_TRAINING = Name(
    "keras.Layer",
    "_call_has_training_arg",
    "whether `call` takes `training`",
    "move_to_pipeline does not work",
    KERAS_SEEN,
)
_IN_TF_DATA = "keras.src.layers.preprocessing."  # layers that compute with TensorFlow there, on every backend


def flat_layers(layer: Any) -> list:
    """The layer and all those inside of it; of either Keras."""
    return list(FLATTEN.of(layer)())


def takes_training(layer: keras.Layer) -> bool:
    """Whether the layer's `call` takes `training`."""
    return TAKES_TRAINING.of(layer)


layers_if_known = otherwise(())(flat_layers)


def forget(layer: keras.layers.Layer, name: str) -> None:
    """Delete an attribute that is a layer, whose weights are `layer`'s no more."""
    _untrack(layer, getattr(layer, name))
    delattr(layer, name)


@otherwise(None)
def _untrack(layer: keras.layers.Layer, inner: keras.layers.Layer) -> None:
    TRACKER.of(layer).untrack(inner)


def is_of_keras(thing: Any) -> bool:
    """Whether a class or function is Keras' own, so that what it does is known."""
    return package_of(thing) == "keras"


def package_of(thing: Any) -> str:
    """The package in which a class or function was written: `functools.wraps` copies the name of its module only."""
    of_function = isinstance(thing, types.FunctionType)
    where = thing.__globals__.get("__name__") if of_function else getattr(thing, "__module__", "")
    return (where or "").partition(".")[0]


def runs_in_tf_data(layer: Any) -> bool:
    """Whether a layer is one of Keras' own that run in `tf.data`, whatever the backend."""
    return any(kind.__module__.startswith(_IN_TF_DATA) for kind in type(layer).__mro__)
