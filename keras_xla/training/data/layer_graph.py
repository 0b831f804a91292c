"""The graph of layers of a functional or Sequential model: its nodes in order, run one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend.steps import forward_blockers
from keras_xla.private.keras.graphs import is_graph, nodes_of
from keras_xla.private.keras.layers import flat_layers, takes_training


def ends_of(model: keras.Model) -> tuple[Any, Any]:
    """Its inputs and outputs, in their structures."""
    if isinstance(model, keras.Sequential):  # which has no structures
        return model.inputs[0], model.outputs[0]
    return model.input, model.output


def run(nodes: Sequence, values: dict[int, Any], training: bool | None = None) -> None:
    """Call the operations of nodes, in order.

    `values` are by the id of the symbolic tensor, and get the results. `training` is passed to the layers that take it,
    unless it is None.
    """
    for node in nodes:
        arguments, options = node.arguments.fill_in(values)
        if training is not None and isinstance(node.operation, keras.Layer) and takes_training(node.operation):
            options = {**options, "training": training}
        _put(node, node.operation(*arguments, **options), values)


def _put(node, results: Any, values: dict[int, Any]) -> None:
    values.update((id(x), value) for x, value in zip(node.outputs, keras.tree.flatten(results), strict=True))


def blocked(node, probe: bool) -> bool:
    """Whether XLA cannot compile a node's operation: its layers say so, or, with `probe`, the backend's operations."""
    operation = node.operation
    if any(x.dtype == "string" for x in (*node.input_tensors, *node.outputs)):
        return True
    layers = flat_layers(operation) if isinstance(operation, keras.Layer) else []
    if not all(layer.supports_jit for layer in layers):
        return True

    def call(tensors):
        values = {id(x): value for x, value in zip(node.input_tensors, tensors, strict=True)}
        run([node], values, training=True)
        return [values[id(x)] for x in node.outputs]

    return probe and bool(forward_blockers(call, list(node.input_tensors)))


def inlined(inputs: Sequence, outputs: Sequence, taken_apart: Callable) -> tuple[list, bool]:
    """The outputs of a model once more, with the layers of models inside called one by one.

    `taken_apart(node)` tells whether to do that for the model that a node calls. Returns the outputs, and whether there
    was such a model; if not, they are the same ones.
    """
    nodes = nodes_of(inputs, outputs)
    if not any(is_graph(node.operation) and taken_apart(node) for node in nodes):
        return list(outputs), False
    values = {id(x): x for x in inputs}
    for node in nodes:
        if not is_graph(node.operation) or not taken_apart(node):
            run([node], values)
            continue
        ours, results = ends_of(node.operation)
        arguments, _ = node.arguments.fill_in(values)
        passed = match(node.operation.name, ours, arguments[0])
        ours = keras.tree.flatten(ours)
        inner, _ = inlined(ours, keras.tree.flatten(results), taken_apart)
        within = {id(x): value for x, value in zip(ours, passed, strict=True)}
        run(nodes_of(ours, inner), within)
        _put(node, [within[id(x)] for x in inner], values)
    return [values[id(x)] for x in outputs], True


def match(who: str, inputs: Any, x: Any) -> list:
    """The tensors of `x` for the inputs of a model, flat, with their ranks and dtypes; raises `ValueError` if not."""
    refs = keras.tree.flatten(inputs)
    if isinstance(x, dict) and not isinstance(inputs, dict) and all(ref.name in x for ref in refs):
        x = [x[ref.name] for ref in refs]
    flat = keras.tree.flatten(x)
    keys = isinstance(inputs, dict) and isinstance(x, dict)
    if len(flat) != len(refs) or (keys and x.keys() != inputs.keys()):
        shown = keras.tree.map_structure(lambda leaf: type(leaf).__name__, x)
        expected = keras.tree.map_structure(lambda ref: ref.name, inputs)
        raise ValueError(f"{who} received inputs {shown}; it expects {expected}.")
    return [_fitted(who, value, ref) for value, ref in zip(flat, refs, strict=True)]


def _fitted(who: str, x: Any, ref: keras.KerasTensor) -> Any:
    if not hasattr(x, "shape"):
        raise ValueError(f"{who} received {type(x).__name__} for {ref.name!r}; it expects an array or a tensor.")
    rank, wanted = len(x.shape), len(ref.shape)
    if rank == wanted - 1 and ref.shape[-1] == 1:
        x = x[..., None]
    elif rank == wanted + 1 and x.shape[-1] == 1:
        x = x[..., 0]
    elif rank != wanted:
        raise ValueError(f"{who} received {ref.name!r} of shape {tuple(x.shape)}; it expects {ref.shape}.")
    # Elsewhere, a tensor of tf.data is not one of keras.ops; Keras' preprocessing layers convert it themselves.
    convert = backend.name == "tensorflow" and ref.dtype != "string" and not isinstance(x, keras.KerasTensor)
    return keras.ops.convert_to_tensor(x, dtype=ref.dtype) if convert else x
