"""A traced TensorFlow function taken apart: its graph put into other functions without tracing it again."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf


class Graph:
    """The graph of a concrete function, ready to be put into the function under construction.

    Variables stay the ones that were traced. What Python did while tracing is not done again.
    """

    def __init__(self, concrete):
        self.concrete = concrete
        graph = concrete.graph
        captures = graph.captures
        self._inputs = [x.name for x in concrete.inputs[: len(concrete.inputs) - len(captures)]]
        self._captures = [(outer, inner.name) for outer, inner in captures]
        self.outputs = [x.name for x in concrete.outputs]
        self.effects = [op.name for op in graph.control_outputs]
        definition = graph.as_graph_def()
        self.library = definition.library
        self._versions = definition.versions
        self.nodes = {node.name: node for node in definition.node if node.op != "Placeholder"}

    def operation(self, name: str):
        """The traced operation of this name."""
        return self.concrete.graph.get_operation_by_name(name)

    def upstream(self, starts: Collection[str], stop: Collection[str] = ()) -> set[str]:
        """The names of `starts` and of everything that they need, as far as the names in `stop`, which are left out."""
        found, todo = set(), list(starts)
        while todo:
            name = todo.pop()
            if name in found or name in stop or name not in self.nodes:
                continue
            found.add(name)
            todo += map(node_of, self.nodes[name].input)
        return found

    def put(
        self, arguments: Sequence, nodes: Collection[str], wanted: Sequence[str], given: dict | None = None
    ) -> list:
        """Put `nodes` into the graph under construction.

        Args:
            arguments: The flat tensors in place of the function's inputs.
            nodes: Names of the nodes to put there.
            wanted: Names of tensors (`"a:0"`) or operations (`"a"`) of theirs.
            given: Tensors by name, in place of those that nodes left out would make.

        Returns:
            What `wanted` names, in its order.
        """
        here = tf.compat.v1.get_default_graph()
        known = dict(zip(self._inputs, arguments, strict=True))
        known |= {name: outer for outer, name in self._captures}
        known |= given or {}
        part = tf.compat.v1.GraphDef(library=self.library, versions=self._versions)
        used = set()
        for name in nodes:
            node = part.node.add()
            node.CopyFrom(self.nodes[name])
            kept = [i for i in node.input if not (i.startswith("^") and i[1:] not in nodes)]
            del node.input[:]
            node.input.extend(kept)
            used.update(tensor_of(i) for i in kept if not i.startswith("^"))
        replaced = {name: here.capture(x) if _is_outside(x, here) else x for name, x in known.items() if name in used}
        return tf.graph_util.import_graph_def(part, input_map=replaced, return_elements=list(wanted), name="")

    def packed(self, outputs: Sequence):
        """Flat outputs in the structure that the function returns."""
        return repack(self.concrete.structured_outputs, outputs)


def leaves_of(structure: Any) -> list:
    """The tensors of a structure, ragged and sparse ones taken apart, without Nones."""
    return [x for x in tf.nest.flatten(structure, expand_composites=True) if x is not None]


def repack(structure: Any, tensors: Iterable) -> Any:
    """Other tensors in place of the structure's, Nones left where they are."""
    rest = iter(tensors)
    leaves = [None if x is None else next(rest) for x in tf.nest.flatten(structure, expand_composites=True)]
    return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


def node_of(name: str) -> str:
    """The node of a tensor (`"a:0"`), a control input (`"^a"`) or itself."""
    return name.lstrip("^").split(":")[0]


def tensor_of(name: str) -> str:
    """The full name of a node's input: GraphDef leaves `:0` out."""
    return name if ":" in name else f"{name}:0"


def _is_outside(x, graph) -> bool:
    return not hasattr(x, "graph") or x.graph is not graph
