"""One short text for all graphs that cost the same: equal in every process, whatever names were given.

Names of nodes and functions count up (`dense_3/MatMul`, `__inference_one_step_123`), so that the same model is named
otherwise when a script makes it second. Here a node is its place in its graph, and a function is its body.
"""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.graph import node_of
from keras_xla.private.tensorflow import captures, effects, variables

# What differs from run to run and costs nothing: names, seeds, and settings that hold for the whole process.
_FREE = frozenset({"shared_name", "container", "token", "seed", "seed2", "config", "config_proto", "executor_type"})
_SIMPLE = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)  # that compilers make something cheaper of


def fingerprint(concrete) -> str:
    """Equal for traced functions of the same operations, attributes, edges, shapes and dtypes, variables included."""
    graph = concrete.graph
    definition = graph.as_graph_def()
    hasher = _Hasher(definition.library)
    held = {id(variable.handle): variable for variable in variables(graph)}
    captured = [(inner.op.name, held.get(id(outer), outer)) for outer, inner in captures(graph)]
    told = {name: f"{x.dtype.name} {x.shape}" for name, x in captured}
    parts = list(hasher.nodes(definition.node, {}, told))
    places = {node.name: str(i) for i, node in enumerate(definition.node)}
    parts.append(("returns", *(_place(x.name, places) for x in concrete.outputs)))
    parts.append(("runs", *sorted(places[op.name] for op in effects(graph))))
    return _digest(parts)


class _Hasher:
    """Hashes the functions of a library, each once."""

    def __init__(self, library):
        self._functions = {function.signature.name: function for function in library.function}
        self._known: dict[str, str] = {}

    def nodes(self, nodes, places: dict[str, str], given: dict[str, str]) -> Iterator[tuple]:
        """What there is to know of each node; `given` has what is known of some beside it."""
        places = {**places, **{node.name: str(i) for i, node in enumerate(nodes)}}
        for node in nodes:
            operation = self._function(node.op) if node.op in self._functions else node.op
            data = (_place(name, places) for name in node.input if not name.startswith("^"))
            waits = sorted(_place(name, places) for name in node.input if name.startswith("^"))
            device = node.device.rpartition("/")[2]
            yield operation, device, given.get(node.name, ""), *data, *waits, *self._attributes(node.attr)

    def _function(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = "itself"  # TensorFlow has no recursion; this ends the search if it ever comes
            function = self._functions[name]
            arguments = {x.name: f"argument {i}" for i, x in enumerate(function.signature.input_arg)}
            places = {**arguments, **{node.name: str(i) for i, node in enumerate(function.node_def)}}
            returns = (_place(function.ret[x.name], places) for x in function.signature.output_arg)
            parts = [("takes", *(tf.dtypes.as_dtype(x.type).name for x in function.signature.input_arg if x.type))]
            parts += self.nodes(function.node_def, arguments, {})
            parts += [("returns", *returns), ("is", *self._attributes(function.attr))]
            parts.append(("runs", *sorted(_place(name, places) for name in function.control_ret.values())))
            self._known[name] = _digest(parts)
        return self._known[name]

    def _attributes(self, attributes) -> Iterator[str]:
        for name in sorted(attributes):
            hidden = name.startswith("_") and not name.startswith(("_Xla", "_xla"))
            if not hidden and name not in _FREE:
                yield f"{name}={self._value(attributes[name])}"

    def _value(self, value) -> str:
        if value.HasField("func"):
            return self._called(value.func)
        if value.list.func:
            return " ".join(map(self._called, value.list.func))
        if value.HasField("tensor"):
            return _constant(value.tensor)
        return value.SerializeToString(deterministic=True).hex()

    def _called(self, function) -> str:
        body = self._function(function.name) if function.name in self._functions else function.name
        return " ".join([body, *self._attributes(function.attr)])


def _constant(proto) -> str:
    """The value, where it matters: shapes, axes and the like do, but not by how much a dropout or a decay is."""
    dtype, shape = tf.dtypes.as_dtype(proto.dtype), tf.TensorShape(proto.tensor_shape)
    told = f"{dtype.name} {shape}"
    if dtype == tf.string:  # messages, which name nodes
        return told
    if not (dtype.is_floating or dtype.is_complex):
        return f"{told} {hashlib.sha256(tf.make_ndarray(proto).tobytes()).hexdigest()}"
    if shape.num_elements() != 1:
        return told
    number = complex(np.asarray(tf.make_ndarray(proto)).item())
    return f"{told} {number}" if number in _SIMPLE else told


def _place(name: str, places: dict[str, str]) -> str:
    """A node's input, by the place of the node that makes it: `"mean/Sum:0"`, `"^a"`, `"dense/MatMul:product:0"`."""
    node = node_of(name)
    return name.lstrip("^").replace(node, places[node], 1) if node in places else name


def _digest(parts: Iterable[tuple]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(repr(part).encode())
    return whole.hexdigest()[:32]
