"""Train and test steps on JAX: Keras hands the state of a model to each of them, and takes it back."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_xla.backend.keras2 import steps_per_execution
from keras_xla.backend.steps import make_state_runner
from keras_xla.private.keras.layers import layers_if_known
from keras_xla.private.keras.trainer import takes_single_batches
from keras_xla.private.names import otherwise
from keras_xla.training.reports.ledger import Ledger
from keras_xla.training.steps.last_batch import filling


@otherwise(False)
def hands_over_state(model: keras.Model, kind: str) -> bool:
    """Whether Keras hands the state of a model to each step, with an iterator of single batches.

    Not where a layer says that XLA cannot compile it, or the model is compiled without XLA: Keras runs all Python of
    such a step every time, so no loop may.
    """
    if not model.jit_compile or not all(getattr(layer, "supports_jit", True) for layer in layers_if_known(model)):
        return False
    nnx = getattr(keras.config, "is_nnx_enabled", lambda: False)()  # state in the variables of flax
    return make_state_runner is not None and kind != "predict" and not nnx and takes_single_batches(model)


def state_runner(model: keras.Model, kind: str, make: Callable[[], Callable], ledger: Ledger) -> Any:
    """The backend's runner of such steps of a compiled model, whose step is replaced on the instance.

    `make()` builds Keras' own function, which runs one step; the ledger is told of what compiles.
    """
    fill = filling(model, kind)  # before Keras' function is made of the step
    step, steps = getattr(model, f"{kind}_step"), steps_per_execution(model)
    layers = functools.partial(layers_if_known, model)
    return make_state_runner(step, make(), fill, ledger.compiled, steps, layers)
