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

from keras_xla.backend.signature import symbolic
from keras_xla.private.functional import is_graph
from keras_xla.private.keras import flat_layers, output_spec
from keras_xla.private.keras_compile import symbolic_build
from keras_xla.private.names import otherwise


def state_maker(model: keras.Model) -> Callable[[Any], None] | None:
    """Makes what the train step of a built model would make; None for steps that are not Keras' own.

    It is `make(spec)`, for a batch's structure of `tf.TypeSpec`. That makes nothing where a layer has yet to be built,
    the batch is ragged or sparse, or the model answers otherwise in training, and leaves errors to the trace, which
    says where they come from.
    """
    if "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step:
        return None

    @otherwise(None)
    def make(spec: Any) -> None:
        leaves = [x for x in tf.nest.flatten(spec) if x is not None]
        dense = all(isinstance(x, tf.TensorSpec) and x.shape.rank for x in leaves)
        if dense and all(layer.built for layer in flat_layers(model)):
            with contextlib.suppress(Exception):
                if _answers_alike(model, spec):
                    symbolic_build(model, spec)

    return make


def _answers_alike(model: keras.Model, spec: Any) -> bool:
    """Whether the model's outputs are alike in training and out of it.

    Out of training they are what a symbolic build makes metrics and losses for, and in training what plain Keras does.
    """
    if is_graph(model):  # to look costs a call of each layer, and hardly one gives other shapes in training
        return True
    x, *_ = keras.utils.unpack_x_y_sample_weight(spec)
    x = tf.nest.map_structure(symbolic, x)
    first, second = (output_spec(model, x, training) for training in (True, False))
    keras.tree.assert_same_structure(first, second)
    pairs = zip(keras.tree.flatten(first), keras.tree.flatten(second), strict=True)
    return all(x.shape == y.shape and x.dtype == y.dtype for x, y in pairs)
