"""Variables of the optimizer and the metrics, made before the train step is traced.

A `tf.function` that makes variables in its first trace is traced a second time, and each variable it makes there takes
ten times as long as one made outside. Keras on TensorFlow leaves them to that trace; on its other backends it makes
them before, by a pass over symbolic tensors, which is what happens here, too.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_xla.private.keras.compiled_model import symbolic_build
from keras_xla.private.keras.graphs import is_graph
from keras_xla.private.keras.layers import flat_layers
from keras_xla.private.names import otherwise


def state_maker(model: keras.Model) -> Callable[[Any], None] | None:
    """Makes what the train step of a built model would make; None for steps that are not Keras' own.

    It is `make(spec)`, for a batch's structure of `tf.TypeSpec`. That makes nothing where a layer has yet to be built,
    the batch is ragged or sparse, or the model has a `call` of its own, which would see that it is called more often.
    It leaves errors to the trace, which says where they come from.
    """
    if "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step:
        return None

    @otherwise(None)
    def make(spec: Any) -> None:
        leaves = [x for x in tf.nest.flatten(spec) if x is not None]
        dense = all(isinstance(x, tf.TensorSpec) and x.shape.rank for x in leaves)
        # Out of training a model gives what the build makes metrics and losses for, in training what plain Keras does:
        # hardly a layer gives other shapes there.
        if dense and is_graph(model) and all(layer.built for layer in flat_layers(model)):
            with contextlib.suppress(Exception):
                symbolic_build(model, spec)

    return make
