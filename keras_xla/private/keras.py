"""Names of Keras 3 that it does not promise."""

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_xla.private.keras_compile import BUILD
from keras_xla.private.names import KERAS_SEEN, Name, otherwise

FLATTEN = Name(
    "keras.Layer",
    "_flatten_layers",
    "a layer and all those inside of it, at any depth; `layers` has the direct ones only",
    "smaller batches are not filled up, explain does not know layers, and move_to_pipeline does not work",
    KERAS_SEEN,
)
OUTPUT_SPEC = Name(
    "keras.src.backend", "compute_output_spec", "what a model gives for symbolic tensors", BUILD.off, KERAS_SEEN
)
TRACKER = Name(
    "keras.Layer",
    "_tracker",
    "what notes the layers in a layer's attributes; deleting the attribute does not take them off",
    "a layer that was quantized goes on listing its weights in floats, and keeps them in memory",
    KERAS_SEEN,
)
UNMADE = Name(
    "keras.src.backend.common.global_state",
    "set_global_attribute",
    "holds the variables that are made at the end of a `StatelessScope`",
    "Keras cannot make variables any more in a thread where reading a checkpoint has failed",
    KERAS_SEEN,
)
AUTOCAST = Name(
    "keras.src.backend.common.variables",
    "AutocastScope",
    "within it, variables of floats are read in another dtype, or with None in their own",
    "a layer for generation whose model computes in mixed precision can be called either by itself or in a model",
    KERAS_SEEN,
)
STATELESS = Name(
    "keras.src.backend.common.stateless_scope",
    "in_stateless_scope",
    "whether Keras runs a step of a model on JAX",
    "on JAX, with a seed, each batch of a `predict` draws alike",
    KERAS_SEEN,
)
TAKES_TRAINING = Name(
    "keras.Layer",
    "_call_has_training_arg",
    "whether `call` takes `training`",
    "move_to_pipeline does not work",
    KERAS_SEEN,
)
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
MASK = Name(
    "keras.src.backend.common.masking",
    "get_keras_mask",
    "the mask that a layer has put on its output, for the layers, losses and metrics behind it",
    "masks are lost in functions of jit, and move_to_pipeline does not work",
    KERAS_SEEN,
)
PUT_MASK = Name(
    "keras.src.backend.common.masking",
    "set_keras_mask",
    "puts a mask on a tensor",
    "masks are lost in functions of jit",
    KERAS_SEEN,
)
HISTORY = Name(
    "keras.KerasTensor",
    "_keras_history",
    "the layer that a symbolic tensor comes from",
    "move_to_pipeline does not work",
    KERAS_SEEN,
)
CALLS = Name(
    "keras.Operation",
    "_inbound_nodes",
    "the symbolic calls of a layer",
    "a layer for generation cannot be called symbolically with ids once it was with texts",
    KERAS_SEEN,
)
NODES = Name(
    "keras.Function", "_nodes_by_depth", "the calls of layers in a model", "move_to_pipeline does not work", KERAS_SEEN
)
TRACES = Name(
    "keras.callbacks.TensorBoard",
    "_should_trace",
    "whether TensorBoard's callback profiles batches, so that it must see each of them",
    "steps do not run ahead of TensorBoard's callback",
    KERAS_SEEN,
)
INITIALIZE = Name(
    "keras.Variable",
    "_initialize",
    "takes a tf.Variable as it is, so that both stand on the same memory",
    "weights of a live TensorFlow model are copied rather than shared",
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
_IN_TF_DATA = "keras.src.layers.preprocessing."  # layers that compute with TensorFlow there, on every backend


def flat_layers(layer: Any) -> list:
    """The layer and all those inside of it; of either Keras."""
    return list(FLATTEN.of(layer)())


def output_spec(model: keras.Model, x: Any, training: bool) -> Any:
    """What a model gives for symbolic tensors, as symbolic tensors."""
    return _of_module(OUTPUT_SPEC)(model, x, training=training)


def takes_training(layer: keras.Layer) -> bool:
    """Whether the layer's `call` takes `training`."""
    return TAKES_TRAINING.of(layer)


def last_logs(model: keras.Model, logs: Any) -> Any:
    """What `evaluate` makes of the logs of the last step; in Keras after 3.12, those are Python's numbers."""
    made = LAST_LOGS.of(model)(logs)
    numbers = inspect.unwrap(keras.Model.evaluate).__globals__.get("pythonify_logs")
    return made if numbers is None else numbers(made)


def logs_in_order(model: keras.Model, logs: dict) -> Any:
    """What `evaluate` returns of logs without `return_dict`."""
    return LOGS_IN_ORDER.of(model)(logs)


def mask_of(x: Any) -> Any:
    """The mask on a tensor; None without."""
    return _of_module(MASK)(x)


mask_if_known = otherwise(None)(mask_of)
layers_if_known = otherwise(())(flat_layers)


def put_mask(x: Any, mask: Any) -> Any:
    """The tensor itself, with that mask on it; None for none."""
    if mask is not None:
        _put_mask(x, mask)
    return x


@otherwise(None)
def _put_mask(x: Any, mask: Any) -> None:
    _of_module(PUT_MASK)(x, mask)


def maker_of(x: keras.KerasTensor) -> Any:
    """The layer or operation that a symbolic tensor comes from."""
    return HISTORY.of(x).operation


@otherwise([])
def outputs_of_calls(layer: keras.layers.Layer) -> list[list[keras.KerasTensor]]:
    """The outputs of each symbolic call of a layer, in the order of the calls."""
    return [node.output_tensors for node in CALLS.of(layer)]


def nodes_of(inputs: Sequence[keras.KerasTensor], outputs: Sequence[keras.KerasTensor]) -> list:
    """The calls of layers and operations between tensors, each behind what it needs.

    A node has `operation`, `input_tensors`, `outputs` and `arguments`, whose `fill_in({id(tensor): value})` gives
    `(args, kwargs)`.
    """
    depths = NODES.of(keras.Function(inputs, outputs))
    return [node for depth in sorted(depths, reverse=True) for node in depths[depth] if not node.is_input]


def profiles_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether TensorBoard's callback profiles batches; true where nobody knows."""
    return bool(getattr(callback, TRACES.name, True))


def stand_on(variable: keras.Variable, source: Any) -> None:
    """Let a variable stand on the memory of a `tf.Variable` of the same shape and dtype."""
    INITIALIZE.of(variable)(source)


@otherwise(None)
def forget_unmade(variables: set[int]) -> None:
    """Take variables, by their ids, off the list of those that Keras makes at the end of a `StatelessScope`."""
    put = _of_module(UNMADE)
    pending = sys.modules[UNMADE.owner].get_global_attribute("uninitialized_variables", [])
    put("uninitialized_variables", [v for v in pending if id(v) not in variables])


@otherwise(contextlib.nullcontext())
def as_stored() -> contextlib.AbstractContextManager:
    """Within it, variables give their values in their own dtype, whatever a layer around it computes in."""
    return _of_module(AUTOCAST)(None)


@otherwise(False)
def in_stateless_scope() -> bool:
    """Whether Keras has put other values in the place of variables, as in a model's steps on JAX."""
    return _of_module(STATELESS)()


def _of_module(name: Name) -> Any:
    """What a module of Keras that has been imported has under a name."""
    module = sys.modules.get(name.owner)
    if module is None:
        raise name.gone()
    return name.of(module)


def forget(layer: keras.layers.Layer, name: str) -> None:
    """Delete an attribute that is a layer, whose weights are `layer`'s no more."""
    _untrack(layer, getattr(layer, name))
    delattr(layer, name)


@otherwise(None)
def _untrack(layer: keras.layers.Layer, inner: keras.layers.Layer) -> None:
    TRACKER.of(layer).untrack(inner)


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
