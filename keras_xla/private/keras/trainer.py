"""What `fit`, `evaluate` and `predict` of Keras 3 are made of: names that it does not promise."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from keras_xla.private.names import KERAS_SEEN, Name, otherwise

LAST_LOGS = Name(
    "keras.Model",
    "_get_metrics_result_or_logs",
    "what `evaluate` makes of the logs of the last step",
    "`evaluate` on arrays goes through Keras' own pipeline",
    KERAS_SEEN,
)
LOGS_IN_ORDER = Name(
    "keras.Model",
    "_flatten_metrics_in_order",
    "the list that `evaluate` returns without `return_dict`",
    "`evaluate` on arrays goes through Keras' own pipeline",
    KERAS_SEEN,
)
TRACES = Name(
    "keras.callbacks.TensorBoard",
    "_should_trace",
    "whether TensorBoard's callback profiles batches, so that it must see each of them",
    "steps do not run ahead of TensorBoard's callback",
    KERAS_SEEN,
)
MAKE_FUNCTIONS = tuple(
    Name(
        "keras.Model",
        f"make_{kind}_function",
        f"builds `{kind}_function`, which `fit`, `evaluate` and `predict` call once for `steps_per_execution` batches",
        "models run as plain Keras runs them",
        KERAS_SEEN,
        ("force",),
    )
    for kind in ("train", "test", "predict")
)
MAKE_FUNCTION = Name(
    "keras.Model",
    "_make_function",
    "builds those functions; since 3.16 its parameters tell that on JAX several steps take a stack of batches at once",
    "with steps_per_execution, smaller batches are not filled up on JAX",
    KERAS_SEEN,
)
SCANNED_STEPS = "multi_step_scan"  # the function that Keras 3.16 compiles for several steps at a time on JAX
CACHED_EVALUATION = "_use_cached_eval_dataset"  # the keyword with which `fit` calls `evaluate` of its validation data


def last_logs(model: keras.Model, logs: Any) -> Any:
    """What `evaluate` makes of the logs of the last step; in Keras after 3.12, those are Python's numbers."""
    made = LAST_LOGS.of(model)(logs)
    numbers = inspect.unwrap(keras.Model.evaluate).__globals__.get("pythonify_logs")
    return made if numbers is None else numbers(made)


def logs_in_order(model: keras.Model, logs: dict) -> Any:
    """What `evaluate` returns of logs without `return_dict`."""
    return LOGS_IN_ORDER.of(model)(logs)


def profiles_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether TensorBoard's callback profiles batches; true where nobody knows."""
    return bool(getattr(callback, TRACES.name, True))


def step_function(model: Any, kind: str) -> Callable:
    """Keras' own function of one kind of step ("train", "test", "predict"), made anew; the model has it from now on."""
    (name,) = (name for name in MAKE_FUNCTIONS if name.name == f"make_{kind}_function")
    name.of(type(model))(model, force=True)  # it returns it, or None, by the version
    return getattr(model, f"{kind}_function")


def require_step_functions(model_class: type) -> None:
    """Raise `Gone` unless a Keras' `Model` builds the functions of its steps in the methods that are known."""
    for name in MAKE_FUNCTIONS:
        name.of(model_class)


@otherwise(False)
def takes_single_batches(model: keras.Model) -> bool:
    """Whether on JAX each item that a step function takes from its iterator is one batch.

    Keras 3.16 stacks those of one execution, or lists the last of them.
    """
    if model.steps_per_execution == 1:
        return True
    return "out_shardings" not in inspect.signature(MAKE_FUNCTION.of(model)).parameters
