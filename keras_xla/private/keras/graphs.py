"""Models that are graphs of layers, and symbolic calls: names that Keras 3 does not promise."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_xla.private.keras.layers import is_of_keras
from keras_xla.private.names import KERAS_SEEN, Name, otherwise

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
    "keras.Function",
    "_nodes_by_depth",
    "the calls of layers in a model",
    "move_to_pipeline does not work, and a smaller last batch compiles again",
    KERAS_SEEN,
)


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
    return _calls_in(keras.Function(inputs, outputs))


def nodes_within(model: keras.Model) -> list:
    """The calls of layers and operations in a model of which `is_graph` holds, see `nodes_of`."""
    return _calls_in(model) if isinstance(model, keras.Function) else nodes_of(model.inputs, model.outputs)


def _calls_in(function: keras.Function) -> list:
    depths = NODES.of(function)
    return [node for depth in sorted(depths, reverse=True) for node in depths[depth] if not node.is_input]


def is_graph(model: Any) -> bool:
    """Whether a model is what its graph says: functional or a built Sequential, without a `call` of its own."""
    names = ("Functional", "Sequential")
    kind: Any = type(model)
    kinds = [k for k in kind.__mro__ if k.__name__ in names and is_of_keras(k)]
    return bool(kinds) and kind.call is kinds[0].call and bool(getattr(model, "inputs", None))
