"""Tensors of a traced step and of the functions that it calls, followed from the inside of a call to the outside."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.definitions import functions_in
from keras_xla.backend.tensorflow.graphs.graph import SHAPES, Graph
from keras_xla.private.tensorflow.graphs import graph_of_function

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
_SAME = ("Identity", "StopGradient", "PreventGradient", "Snapshot", "IdentityN")
# Pure operations that cost no more than to read what they take. None of them raises for the values it is given.
# fmt: off
CHEAP = frozenset(
    {
        "Abs", "Add", "AddV2", "All", "Any", "ArgMax", "ArgMin", "Bitcast", "BroadcastTo", "Cast", "Ceil",
        "ClipByValue", "Concat", "ConcatOffset", "ConcatV2", "Const", "Cumsum", "DivNoNan", "Equal", "Exp",
        "ExpandDims", "Fill", "Floor", "Greater", "GreaterEqual", "Identity", "IdentityN", "IsFinite",
        "IsInf", "IsNan", "Less", "LessEqual", "Log", "LogicalAnd", "LogicalNot", "LogicalOr", "Max",
        "Maximum", "Mean", "Min", "Minimum", "Mul", "Neg", "NotEqual", "OneHot", "OnesLike", "Pack", "Pad",
        "PadV2", "PreventGradient", "Prod", "Range", "Rank", "RealDiv", "Relu", "Reshape", "ReverseV2",
        "Rint", "Round", "Select", "SelectV2", "Shape", "ShapeN", "Sigmoid", "Sign", "Size", "Slice",
        "Snapshot", "Split", "SplitV", "Sqrt", "Square", "SquaredDifference", "Squeeze", "StopGradient",
        "StridedSlice", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unpack", "ZerosLike",
    }
)
# fmt: on
# What `tf.raw_ops` calls otherwise than the operations do.
_RENAMED = dict.fromkeys(("reduction_indices", "dim", "split_dim", "squeeze_dims"), "axis")
# Of a list's end, gradients take what a loop has put there: what says how large something is was looked at there.
_NEVER_VARYING = (*SHAPES, "Const", "VariableShape", "TensorListLength", "TensorListElementShape", "TensorListPopBack")
_MOST = 100  # operations between a batch and what is looked at


class Ref(NamedTuple):
    """A tensor of a scope."""

    scope: "Scope"
    name: str

    @property
    def tensor(self) -> tf.Tensor:
        return self.scope.graph.get_tensor_by_name(self.name)

    @property
    def op(self) -> tf.Operation:
        return self.tensor.op

    def inputs(self) -> list["Ref"]:
        """What its operation takes."""
        return [Ref(self.scope, x.name) for x in self.op.inputs]


class Scope:
    """The graph of a step, or of one call of a function in it.

    `bound` has what its placeholders stand for, by the names of their tensors. `call` is the operation that calls it
    with the scope of that one, None for the step itself. `root` is the name of the operation of the step that it is
    called in, empty for the step itself.
    """

    def __init__(self, graph, bound: dict[str, Ref], call: "tuple[Scope, tf.Operation] | None" = None):
        self.graph, self.bound, self.call = graph, bound, call
        self.root: str = "" if call is None else call[0].root or call[1].name
        self._called: dict[str, list[Scope]] = {}

    def called_by(self, op: tf.Operation) -> list["Scope"]:
        """A scope for each function that an operation calls; none for those of which no graph is at hand.

        Of a loop, that is its body and its condition.
        """
        if op.name not in self._called:
            graphs = [graph_of_function(op.graph, each.name) for each in functions_in(op.node_def)]
            self._called[op.name] = [self._inside(op, graph) for graph in graphs if graph is not None]
        return self._called[op.name]

    def _inside(self, op: tf.Operation, graph) -> "Scope":
        given = op.inputs[1:] if op.type in BRANCHES else op.inputs
        bound = {}
        if op.type in (*CALLS, *BRANCHES, *LOOPS):
            bound = {inner.name: Ref(self, x.name) for inner, x in zip(graph.inputs, given, strict=True)}
        if op.type in LOOPS:
            body: Any = graph_of_function(op.graph, op.get_attr("body").name)
            ends = [_followed(x) for x in body.outputs]
            kept = [end is start for start, end in zip(body.inputs, ends, strict=True)]
            bound = {inner.name: bound[inner.name] for inner, same in zip(graph.inputs, kept, strict=True) if same}
        return Scope(graph, bound, (self, op))


class Values:
    """What is known of the tensors of a step, with its shapes fixed, before it runs."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.top = Scope(graph.concrete.graph, {})
        self._variables = {id(v.handle): v.shape for v in graph.concrete.variables}
        self._needs: dict[tuple[Ref, bool], frozenset[str] | None] = {}
        self._values: dict[Ref, np.ndarray | None] = {}
        self._varying: dict[Ref, bool] = {}

    def origin(self, ref: Ref) -> Ref:
        """The tensor that this one is the same as, as far out as it can be followed."""
        while True:
            op, index = ref.op, ref.tensor.value_index
            if op.type == "Placeholder" and ref.name in ref.scope.bound:
                ref = ref.scope.bound[ref.name]
            elif op.type in _SAME:
                ref = Ref(ref.scope, op.inputs[index].name)
            elif op.type in CALLS and (inside := ref.scope.called_by(op)):
                ref = Ref(inside[0], inside[0].graph.outputs[index].name)
            elif op.type in LOOPS and ref.tensor.dtype == tf.resource:
                ref = Ref(ref.scope, op.inputs[index].name)
            else:
                return ref

    def shape(self, ref: Ref) -> tf.TensorShape:
        """What is known of a tensor's shape; of a variable's, where it is a handle."""
        origin = self.origin(ref)
        if origin.tensor.dtype == tf.resource:
            handle = self.graph.captures.get(origin.name) if origin.scope is self.top else None
            return self._variables.get(id(handle), tf.TensorShape(None))
        shape = ref.tensor.shape
        for each in (ref, origin):
            found = self.graph.shapes.get(each.name, shape) if each.scope is self.top else each.tensor.shape
            shape = shape.merge_with(found) if shape.is_compatible_with(found) else shape
        if not shape.is_fully_defined() and origin.op.type == "ScatterNd":
            sizes = self.value(origin.inputs()[2])
            return shape if sizes is None else tf.TensorShape(sizes)
        if not shape.is_fully_defined() and origin.op.type in ("LogicalAnd", "LogicalOr"):
            return tf.broadcast_static_shape(*map(self.shape, origin.inputs()))
        return shape

    def needs(self, ref: Ref, shapes: bool = False) -> frozenset[str] | None:
        """The inputs of the step that a tensor is cheaply made from; None if it is not.

        With `shapes`, it may also be made from shapes of any tensors.
        """
        if (ref, shapes) in self._needs:
            return self._needs[ref, shapes]
        found: set[str] = set()
        seen, todo = {self.origin(ref)}, [self.origin(ref)]
        while todo:
            each = todo.pop()
            if each.scope is self.top and each.name in self.graph.inputs:
                found.add(each.name)
            elif self._fixed(each) is None and not self._captured(each) and not (shapes and each.op.type in SHAPES):
                if not self._cheap(each) or len(seen) > _MOST:
                    return self._needs.setdefault((ref, shapes), None)
                new = {self.origin(x) for x in each.inputs()} - seen
                seen |= new
                todo += new
        return self._needs.setdefault((ref, shapes), frozenset(found))

    def varies(self, ref: Ref) -> bool:
        """Whether a tensor may have another value in another run: more than constants and shapes goes into it."""
        ref = self.origin(ref)
        if ref not in self._varying:
            seen, todo = {ref}, [ref]
            self._varying[ref] = False
            while todo and not self._varying[ref]:
                each = todo.pop()
                if self._fixed(each) is not None or self._captured(each) or each.op.type in _NEVER_VARYING:
                    continue
                inputs = each.inputs()
                self._varying[ref] = not inputs or each.op.op_def.is_stateful or self._varying.get(each, False)
                new = {self.origin(x) for x in inputs} - seen
                seen |= new
                todo += new
        return self._varying[ref]

    def _cheap(self, ref: Ref) -> bool:
        if ref.op.type in ("FloorDiv", "FloorMod"):
            divisor = self.value(ref.inputs()[1])
            return ref.tensor.dtype.is_floating or (divisor is not None and bool(divisor.all()))
        return ref.op.type in CHEAP

    def value(self, ref: Ref) -> np.ndarray | None:
        """What a tensor always is; None if that is not known."""
        ref = self.origin(ref)
        if ref not in self._values:
            self._values[ref] = self._value(ref)
        return self._values[ref]

    def _value(self, ref: Ref) -> np.ndarray | None:
        known = self._fixed(ref)
        if known is None and ref.op.type == "Const":
            known = tf.get_static_value(ref.tensor)
        if known is None and self.needs(ref) == frozenset() and not self._captured(ref):
            given = [self.value(x) for x in ref.inputs()]
            if any(x is None for x in given):
                return None  # made from a captured tensor, whose value is not at hand
            try:
                with tf.init_scope(), tf.device("CPU:0"):
                    made = _eagerly(ref.op, given)
            except tf.errors.OpError:
                return None  # XLA has kernels for dtypes that nothing else has; what is wrong, the step itself says
            self._values |= {Ref(ref.scope, ref.op.outputs[i].name): x.numpy() for i, x in enumerate(made)}
            return self._values[ref]
        return None if known is None else np.asarray(known)

    def made(self, ref: Ref, given: dict[str, tf.Tensor], made: dict[Ref, Any]) -> Any:
        """A tensor that is cheaply made, made again in the graph under construction.

        `given` are the inputs of the step, by name; `made` is what was made already, and more is put there.
        """
        ref = self.origin(ref)
        if ref not in made:
            if ref.scope is self.top and ref.name in given:
                made[ref] = given[ref.name]
            elif (known := self._fixed(ref)) is not None:
                made[ref] = tf.constant(known)
            elif self._captured(ref):
                made[ref] = self.graph.captures[ref.name]
            else:
                op, inputs = ref.op, [self.made(x, given, made) for x in ref.inputs()]
                attributes = {name: value for name, value in op.node_def.attr.items() if name != "_class"}
                here = tf.compat.v1.get_default_graph()
                again = here.create_op(op.type, inputs, [x.dtype for x in op.outputs], attrs=attributes)
                made.update({Ref(ref.scope, x.name): y for x, y in zip(op.outputs, again.outputs, strict=True)})
        return made[ref]

    def _fixed(self, ref: Ref) -> np.ndarray | None:
        return self.graph.known.get(ref.name) if ref.scope is self.top else None

    def _captured(self, ref: Ref) -> bool:
        """Whether it is a tensor, not a variable, from outside of the step."""
        outside = ref.scope is self.top and ref.name in self.graph.captures
        return outside and ref.tensor.dtype not in (tf.resource, tf.variant)


def operations_in(scope: Scope) -> Iterator[tuple[Scope, tf.Operation]]:
    """Every operation of a scope and of what it calls, in order."""
    for op in scope.graph.get_operations():
        yield scope, op
        for inside in scope.called_by(op):
            yield from operations_in(inside)


def _eagerly(op: tf.Operation, inputs: Sequence[np.ndarray | None]) -> list[tf.Tensor]:
    """The outputs of a cheap operation for these inputs."""
    rest, arguments, told = iter(inputs), {}, set()
    for argument in op.op_def.input_arg:
        count = op.get_attr(argument.number_attr) if argument.number_attr else 0
        arguments[argument.name] = [next(rest) for _ in range(count)] if argument.number_attr else next(rest)
        told |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
    called = {"Select": {"t": "x", "e": "y"}}.get(op.type, _RENAMED)
    names = [attribute.name for attribute in op.op_def.attr if attribute.name not in told]
    arguments |= {name: op.get_attr(name) for name in names}
    outputs = getattr(tf.raw_ops, op.type)(**{called.get(name, name): x for name, x in arguments.items()})
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def _followed(x: tf.Tensor) -> tf.Tensor:
    while x.op.type in _SAME:
        x = x.op.inputs[x.value_index]
    return x
