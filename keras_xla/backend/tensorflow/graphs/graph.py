"""A traced TensorFlow function taken apart: its graph put into other functions without tracing it again."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_xla.private.tensorflow.graphs import capture, captures, effects

_NONE: Mapping = {}
SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def hidden(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same tensors, of which TensorFlow's optimizer finds out no more than Python says of them.

    It adds in another order where it can find out how many rows there are, or that several have as many.
    """
    return list(tf.experimental.Optional.from_value(tuple(tensors)).get_value())


class Graph:
    """The graph of a concrete function, ready to be put into the function under construction.

    Variables stay the ones that were traced. What Python did while tracing is not done again.

    Attributes:
        inputs: Names of the tensors that the function takes, variables aside.
        captures: Values from outside, by the names of the tensors that stand for them.
        outputs: Names of the tensors that it returns.
        effects: Names of the operations that run for their effects.
        nodes: The `NodeDef`s by name.
        fixed: Names of the operations that `fix_shapes` put there.
        known: What they are, by the names of the tensors that they stand for.
        shapes: Those that `fix_shapes` found, by the names of tensors.
    """

    def __init__(self, concrete: Any):
        self.concrete = concrete
        graph = concrete.graph
        captured = captures(graph)
        self.inputs = [x.name for x in concrete.inputs[: len(concrete.inputs) - len(captured)]]
        self.captures = {inner.name: outer for outer, inner in captured}
        self.outputs = [x.name for x in concrete.outputs]
        self.effects = [op.name for op in effects(graph)]
        definition = graph.as_graph_def()
        self._library, self._versions = definition.library, definition.versions
        self.nodes = {node.name: node for node in definition.node if node.op != "Placeholder"}
        self.fixed: set[str] = set()
        self.known: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tf.TensorShape] = {}
        for node in self.nodes.values():
            node.attr.pop("_class", None)  # the place of another node, which may be put elsewhere
            if node.op == "Const":
                del node.input[:]  # what ran before it does not matter
        self._bypass_loops()

    def operation(self, name: str):
        """The traced operation of this name."""
        return self.concrete.graph.get_operation_by_name(name)

    def needs(self, name: str) -> list[str]:
        """The nodes that a node waits for."""
        return [node for node in map(node_of, self.nodes[name].input) if node in self.nodes]

    def used_by(self, names: Iterable[str]) -> set[str]:
        """The tensors that nodes use, but for variables."""
        used = {tensor_of(i) for name in names for i in self.nodes[name].input if not i.startswith("^")}
        return used.difference(self.captures)

    def upstream(self, starts: Collection[str]) -> set[str]:
        """The names of `starts` and of everything that they need."""
        found, todo = set(), [name for name in starts if name in self.nodes]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.needs(name)
        return found

    def fix_shapes(self, specs: Sequence[tf.TensorSpec], others: Collection[str] = ()) -> None:
        """Put constants in place of every shape that is known from these specs of the inputs.

        Then what needs only the shape of a tensor (a dropout mask, the gradient of a sum) does not wait for it, and
        XLA, which must know shapes, gets them wherever they come from. Those of the operations `others` are of
        interest, too.
        """
        self._find_shapes(specs, others)
        if self._shape_lookups():  # then more is known of what follows them
            self._find_shapes(specs, others)
        constants = {}
        for name, shape in self.known.items():
            value = tf.make_tensor_proto(shape)
            constant = tf.compat.v1.NodeDef(name=f"{name.replace(':', '_')}/fixed", op="Const")
            constant.attr["dtype"].type = value.dtype
            constant.attr["value"].tensor.CopyFrom(value)
            self.nodes[constant.name], constants[name] = constant, constant.name
        self.fixed.update(constants.values())
        self._replace(constants)

    def _find_shapes(self, specs: Sequence[tf.TensorSpec], others: Collection[str]) -> None:
        asking = [name for name, node in self.nodes.items() if node.op in SHAPES]

        def probe(*arguments):
            wanted, given = [*asking, *others], dict(zip(self.inputs, arguments, strict=True))
            ops = self.put(self.upstream(wanted), asking, given)
            for op in tf.compat.v1.get_default_graph().get_operations():
                self.shapes.update({x.name: x.shape for x in op.outputs if op.name in self.nodes})
            self.shapes.update({name: x.shape for name, x in given.items()})
            for name, op in zip(asking, ops, strict=True):
                for i, (x, made) in enumerate(zip(op.inputs, op.outputs, strict=True)):
                    if (answer := _answer(op.type, x.shape)) is not None:
                        self.known[f"{name}:{i}"] = np.asarray(answer, made.dtype.as_numpy_dtype)
            return tf.zeros(())

        tf.function(probe, autograph=False).get_concrete_function(*specs)

    def _shape_lookups(self) -> bool:
        """Have what tables find known by its shape, which only Python said; whether there is any."""
        shaped = {}
        for name in [name for name, node in self.nodes.items() if node.op.startswith("LookupTableFind")]:
            shape = self.shapes.get(tensor_of(self.nodes[name].input[1]), tf.TensorShape(None))
            if shape.rank is not None:
                node = tf.compat.v1.NodeDef(name=f"{name}/shaped", op="EnsureShape", input=[f"{name}:0"])
                node.attr["T"].CopyFrom(self.nodes[name].attr["Tout"])
                node.attr["shape"].shape.CopyFrom(shape.as_proto())
                shaped[name] = node
        self._replace({f"{name}:0": f"{node.name}:0" for name, node in shaped.items()})
        self.nodes.update({node.name: node for node in shaped.values()})
        self.fixed.update(node.name for node in shaped.values())
        return bool(shaped)

    def _bypass_loops(self) -> None:
        """Take handles of variables from where loops take them, since they come out of loops unchanged."""
        handles = {}
        for name, node in self.nodes.items():
            if node.op in ("While", "StatelessWhile"):
                outputs = self.operation(name).outputs
                handles.update({x.name: node.input[i] for i, x in enumerate(outputs) if x.dtype == tf.resource})
        self._replace(handles)

    def _replace(self, others: dict[str, str]) -> None:
        """Have all nodes use other tensors than those named."""
        for node in self.nodes.values():
            for i, name in enumerate(node.input):
                while not name.startswith("^") and tensor_of(name) in others:
                    name = others[tensor_of(name)]
                node.input[i] = name

    def put(
        self, nodes: Collection[str], wanted: Sequence[str], given: dict, after: Mapping[str, Collection[str]] = _NONE
    ) -> list:
        """Put `nodes` into the graph under construction, all by name; returns what `wanted` names.

        Those are tensors (`"a:0"`) or operations (`"a"`) of theirs, in its order. `given` are tensors by name, in place
        of the inputs, and of those that nodes left out would make. `after` has for some nodes others that they wait
        for, besides those that they did when traced.
        """
        here = tf.compat.v1.get_default_graph()
        known = self.captures | given
        part = tf.compat.v1.GraphDef(library=self._library, versions=self._versions)
        used: set[str] = set()
        for name in filter(nodes.__contains__, self.nodes):  # in every process in the same order
            node = part.node.add()
            node.CopyFrom(self.nodes[name])
            waits = [f"^{other}" for other in after.get(name, ())]
            kept = [i for i in (*node.input, *waits) if not (i.startswith("^") and i[1:] not in nodes)]
            del node.input[:]
            node.input.extend(kept)
            used.update(tensor_of(i) for i in kept if not i.startswith("^"))
        replaced = {name: x for name, x in known.items() if name in used}
        for name, x in replaced.items():
            if getattr(x, "graph", None) is not here:
                replaced[name] = capture(here, x)
        return tf.graph_util.import_graph_def(part, input_map=replaced, return_elements=list(wanted), name="")


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


def _answer(op: str, shape: tf.TensorShape) -> Any:
    """What an operation that asks for a shape says; None if that is not known yet."""
    if op == "Rank":
        return shape.rank
    if op == "Size":
        return shape.num_elements()
    return shape.as_list() if shape.is_fully_defined() else None
