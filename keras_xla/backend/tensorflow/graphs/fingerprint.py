"""One short text for all graphs that cost the same: equal in every process, whatever names were given.

Names of nodes and functions count up (`dense_3/MatMul`, `__inference_one_step_123`), so that the same model is named
otherwise when a script makes it second. Here a node is its place in its graph, and a function is its body.
"""

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.definitions import under, with_called
from keras_xla.private.tensorflow.graphs import captures, effects, variables

# What differs from run to run and costs nothing: names, seeds, and settings that hold for the whole process.
_FREE = frozenset({"shared_name", "container", "token", "seed", "seed2", "config", "config_proto", "executor_type"})
_SIMPLE = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)  # that compilers make something cheaper of


def fingerprint(concrete, exact: bool = False) -> str:
    """Equal for traced functions of the same operations, attributes, edges, shapes and dtypes, variables included.

    If `exact`, for those that compute the same: with the same numbers in them, also those that change no cost.
    """
    graph = concrete.graph
    definition = graph.as_graph_def()
    top = definition.library.function.add()
    top.node_def.extend(definition.node)
    top.control_ret.update({op.name: op.name for op in effects(graph)})
    for x in concrete.outputs:
        top.signature.output_arg.add(name=x.name)
        top.ret[x.name] = x.name
    held = {id(variable.handle): variable for variable in variables(graph)}
    captured = [held.get(id(outer), outer) for outer, _ in captures(graph)]
    plain = under([_priced(each, exact) for each in with_called(top, definition.library.function)], "f")
    told = repr([f"{x.dtype.name} {x.shape}" for x in captured])
    content = b"".join(each.SerializeToString(deterministic=True) for each in plain)
    return hashlib.sha256(told.encode() + content).hexdigest()[:32]


def _priced(function: Any, exact: bool) -> Any:
    """What there is to a `FunctionDef` beside names and what costs nothing."""
    made = type(function)(
        signature=function.signature, node_def=function.node_def, attr=function.attr, control_ret=function.control_ret
    )
    for i, output in enumerate(made.signature.output_arg):
        made.ret[str(i)] = function.ret[output.name]
        output.name = str(i)
    for node in (made, *made.node_def):
        for name in list(node.attr):
            if name in _FREE or (name.startswith("_") and not name.startswith(("_Xla", "_xla"))):
                del node.attr[name]
    for node in made.node_def:
        node.device = node.device.rpartition("/")[2]
        for value in node.attr.values():
            if value.HasField("tensor"):
                value.s = _value(value.tensor, exact).encode()
    return made


def _value(proto, exact: bool) -> str:
    """The value, where it matters: shapes, axes and the like do; how large a dropout or a decay is, only if `exact`."""
    dtype, shape = tf.dtypes.as_dtype(proto.dtype), tf.TensorShape(proto.tensor_shape)
    told = f"{dtype.name} {shape}"
    if dtype == tf.string:  # messages, which name nodes
        return told
    if exact or not (dtype.is_floating or dtype.is_complex):
        return f"{told} {hashlib.sha256(tf.make_ndarray(proto).tobytes()).hexdigest()}"
    if shape.num_elements() != 1:
        return told
    number = complex(np.asarray(tf.make_ndarray(proto)).item())
    return f"{told} {number}" if number in _SIMPLE else told
