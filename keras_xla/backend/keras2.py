"""Models of Keras 2 (tf_keras), such as Hugging Face's TensorFlow classes: what is different about them."""

import sys
from collections.abc import Callable
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend.signature import symbolic
from keras_xla.private import tf_keras
from keras_xla.private.tf_keras import AnyKeras as AnyKeras
from keras_xla.private.tf_keras import is_model as is_keras2
from keras_xla.private.tf_keras import untimed as untimed


def require_model(who: str, model: Any) -> None:
    """Raise unless `model` is a Keras model, of Keras 3 or, on the TensorFlow backend, of Keras 2."""
    if is_keras2(model) and backend.name != "tensorflow":
        raise ValueError(
            f"{who} received a tf_keras model, which is TensorFlow's, and Keras runs on {backend.name}; set the "
            "environment variable KERAS_BACKEND=tensorflow before Keras is imported."
        )
    if not isinstance(model, keras.Model) and not is_keras2(model):
        raise TypeError(
            f"{who} received {type(model).__name__}; it expects a keras.Model (or a tf_keras.Model) as first argument."
        )


def model_class(model: Any) -> type:
    """The `Model` class of the Keras that `model` is of."""
    return sys.modules["tf_keras"].Model if is_keras2(model) else keras.Model


def step_of(model: Any, kind: str) -> Callable:
    """The train, test or predict step of a model of either Keras, as a function of a batch."""
    step = getattr(model, f"{kind}_step")
    if not is_keras2(model):
        return step
    import tensorflow as tf  # whose backend it is

    tf_keras.require_steps(model, kind)
    step = tf.function(step)  # converts its `if`s and loops into the graph's, as Keras 2 does and Keras 3 does not

    def counted(data):
        outputs = step(data)
        tf_keras.count_step(model, kind)
        return outputs

    return counted


def steps_per_execution(model: Any) -> int:
    """How many batches each call of a step function is for."""
    return 1 if is_keras2(model) else int(model.steps_per_execution or 1)  # Keras 2 runs several itself


def loops_over_steps(model: Any) -> bool:
    """Whether a function of Keras 2 runs several batches in each call: how many, Keras changes from call to call."""
    return is_keras2(model) and tf_keras.loops_over_steps(model)


def inputs_of(model: Any) -> Any:
    """The shapes and dtypes of the inputs that a Keras 2 model declares, in their structure; None if it does not."""
    if not model.built:
        return None
    signature = getattr(model, "input_signature", None)  # Hugging Face's classes
    if isinstance(signature, dict):
        return {name: symbolic(spec) for name, spec in signature.items()}
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    return symbolic(inputs[0]) if len(inputs) == 1 else [symbolic(x) for x in inputs]
