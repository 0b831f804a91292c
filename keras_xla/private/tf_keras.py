"""Names of Keras 2 (tf_keras) that it does not promise; it is developed no further."""

import functools
import sys
from typing import Any

import keras

from keras_xla.private.names import Name, otherwise

_SEEN = "tf_keras 2.20 and 2.21"

STEPS_PER_EXECUTION = Name(
    "tf_keras.Model",
    "_steps_per_execution",
    "how many batches each call of a step function is for",
    "models of tf_keras run as plain Keras 2 runs them",
    _SEEN,
)
AUTOTUNE = Name(
    "tf_keras.Model",
    "autotune_steps_per_execution",
    "whether Keras looks for the best number of batches a call",
    "models of tf_keras run as plain Keras 2 runs them",
    _SEEN,
)
COUNTERS = {
    kind: Name(
        "tf_keras.Model",
        f"_{kind}_counter",
        "the number of steps, which `fit` and callbacks read",
        "models of tf_keras run as plain Keras 2 runs them",
        _SEEN,
    )
    for kind in ("train", "test", "predict")
}


def is_model(model: Any) -> bool:
    """Whether `model` is one of Keras 2; imports nothing."""
    module = sys.modules.get("tf_keras")
    return module is not None and isinstance(model, module.Model)


@otherwise(True)
def loops_over_steps(model: Any) -> bool:
    """Whether a step function runs several batches in each call: as many as a variable says, which `fit` changes."""
    steps = STEPS_PER_EXECUTION.of(model)
    return steps is not None and (int(steps) > 1 or bool(AUTOTUNE.of(model)))


def require_steps(model: Any, kind: str) -> None:
    """Raise `Gone` unless this Keras 2 has what a runner of its steps needs."""
    STEPS_PER_EXECUTION.of(model)
    COUNTERS[kind].of(model)


def count_step(model: Any, kind: str) -> None:
    """Count one step more, as the model's own function does."""
    COUNTERS[kind].of(model).assign_add(1)


@functools.cache
def untimed(kind: type) -> type:
    """A class of callbacks under the name of one of Keras 2's: `fit` times all others, and warns of slow ones."""
    return type("Callback", (kind,), {})


class AnyKeras(keras.callbacks.Callback):
    """A callback that `fit` of Keras 2 takes too: it asks for what a callback of its own says of itself."""

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
