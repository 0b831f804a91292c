"""Models of Keras 2 (tf_keras), such as Hugging Face's TensorFlow classes: what is different about them."""

import sys
from collections.abc import Callable
from typing import Any

import keras

from keras_xla import backend


def is_keras2(model: Any) -> bool:
    """Whether `model` is a tf_keras model; imports nothing."""
    module = sys.modules.get("tf_keras")
    return module is not None and isinstance(model, module.Model)


def require_model(who: str, model: Any) -> None:
    """Raise unless `model` is a Keras model, of Keras 3 or of Keras 2 on the TensorFlow backend.

    Raises:
        TypeError: `model` is something else.
        ValueError: A Keras 2 model, while Keras 3 runs on another backend.
    """
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
    if is_keras2(model):
        from keras_xla.backend.tensorflow.keras2 import step_of  # TensorFlow only

        return step_of(model, kind)
    return getattr(model, f"{kind}_step")


def steps_per_execution(model: Any) -> int:
    """How many batches each call of a step function is for."""
    steps = model._steps_per_execution if is_keras2(model) else model.steps_per_execution
    return 1 if steps is None else int(steps)


def inputs_of(model: Any) -> Any:
    """The shapes and dtypes of the inputs that a Keras 2 model declares, in their structure; None if it does not."""
    if not model.built:
        return None
    signature = getattr(model, "input_signature", None)  # Hugging Face's classes
    if isinstance(signature, dict):
        return {name: _tensor(spec) for name, spec in signature.items()}
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    return _tensor(inputs[0]) if len(inputs) == 1 else [_tensor(x) for x in inputs]


def _tensor(spec: Any) -> keras.KerasTensor:
    return keras.KerasTensor(tuple(spec.shape), dtype=keras.backend.standardize_dtype(spec.dtype))


class AnyKeras(keras.callbacks.Callback):
    """A callback that `fit` of Keras 2 takes too."""

    _supports_tf_logs = True

    def _implements_train_batch_hooks(self) -> bool:
        return self._overrides("train")

    def _implements_test_batch_hooks(self) -> bool:
        return self._overrides("test")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._overrides("predict")

    def _overrides(self, mode: str) -> bool:
        hooks = (f"on_{mode}_batch_{when}" for when in ("begin", "end"))
        return any(getattr(type(self), hook) is not getattr(keras.callbacks.Callback, hook) for hook in hooks)
