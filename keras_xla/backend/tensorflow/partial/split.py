"""A traced step in parts: what XLA cannot compile or is bad at runs plainly, and all the rest in executables.

Five things are not compiled. Operations without an XLA kernel (string lookups, hash tables). Random numbers: XLA on
CPU makes them one at a time, anew for each use, and by another algorithm than TensorFlow's kernels; so a split step is
faster than the whole one, and draws the same dropout masks as the plain graph does with the same seeds. And, where it
is asked for, convolutions, which XLA on CPU is several times slower at: of an image model's training step the tower
runs plainly, then the head with its gradients in XLA, then the tower's gradients plainly, and the update in XLA. And
operations that check values which nobody can tell before the step: their own kernels raise what they always raise, and
what changes variables waits for them. And maxima of what XLA may round in two ways; see `checks.maxima`.
"""

from collections.abc import Callable, Collection, Sequence
from graphlib import TopologicalSorter

import tensorflow as tf

from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.graphs.graph import Graph, node_of, repack, tensor_of
from keras_xla.backend.tensorflow.graphs.operations import compilable_ops, has_varying_shape, operations_of
from keras_xla.backend.tensorflow.partial.cut import cut
from keras_xla.backend.tensorflow.stored_calls import StoredCalls, xla_function

# Their first operand is what they choose from.
_DRAWN_FROM_VALUES = frozenset({"StatelessMultinomial", "Multinomial", "RandomShuffle"})
RANDOM = _DRAWN_FROM_VALUES | frozenset(  # whose first operand is the shape
    {
        *(f"StatelessRandom{kind}" for kind in ("Uniform", "UniformInt", "UniformFullInt", "Normal")),
        *(f"StatelessRandom{kind}V2" for kind in ("Uniform", "UniformInt", "UniformFullInt", "Normal")),
        "StatelessTruncatedNormal",
        "StatelessTruncatedNormalV2",
        "StatelessParameterizedTruncatedNormal",
        "StatelessRandomGammaV3",
        "StatelessRandomBinomial",
        "StatelessRandomPoisson",
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "ParameterizedTruncatedNormal",
    }
)
CONVOLUTIONS = ("Conv", "DepthwiseConv", "_FusedConv")
HEAVY = ("MatMul", "BatchMatMul", "Einsum", "While", "StatelessWhile", *CONVOLUTIONS)
_TOWER = (*CONVOLUTIONS, "MaxPool", "AvgPool")
_NO_WORK = ("ReadVariableOp", "Identity", "IdentityN", "NoOp", "Reshape", "Squeeze", "ExpandDims", "Assert")
_CHANGES = ("Assign", "Resource", "Rng", "Stateful")
_READS = ("ResourceGather", "StatefulPartitionedCall")
PART_OPERATIONS, COMPILED_PARTS = 8, 32  # operations of a compiled part, and compiled parts, of a step with a tower


class NotSplittable(Exception):
    """Why a step cannot be run in parts; `node` is the operation in the way, with its layers' name scopes, or empty."""

    @property
    def node(self) -> str:  # no __init__: autograph makes errors anew, with a message alone
        return self.args[1] if len(self.args) > 1 else ""

    def __str__(self):
        return str(self.args[0])


def split(checks: Checks, towers: bool = False, calls: StoredCalls | None = None) -> Callable:
    """A traced step, with its static shapes, as a function that runs as much of it as possible through XLA.

    It is `run(flat inputs) -> outputs`, to be called in a `tf.function`, which keeps reading and changing variables in
    order. With `towers`, convolutions, and what lies between them, run plainly. `calls` keep the executables; None
    keeps none. Raises `NotSplittable` if nothing is left to be compiled; so does `run`, if an executable would take
    what has no fixed shape. Where values alone keep XLA from all of it, all of it runs plainly.
    """
    graph = checks.graph
    sorts = _Sorts(graph, towers, checks)
    numbers = sorts.cut()
    if _lists_cross(graph, numbers):  # which XLA neither takes nor gives
        sorts = _Sorts(graph, towers, checks, lists=True)
        numbers = sorts.cut()
    if (towers or sorts.refused or not checks.late) and not any(number % 2 for number in numbers.values()):
        raise NotSplittable("hardly anything is left to be compiled")
    parts = [_Piece(graph, number, numbers, sorts, calls) for number in sorted(set(numbers.values()))]
    constants = sorted(name for name in set(graph.outputs) if node_of(name) in sorts.constant)

    def run(flat):
        have, checked = dict(zip(graph.inputs, flat, strict=True)), []
        for part in parts:
            have |= part.run(have, checked)
        have |= zip(constants, graph.put(graph.upstream([*map(node_of, constants)]), constants, {}), strict=True)
        return repack(graph.concrete.structured_outputs, [tf.identity(have[name]) for name in graph.outputs])

    return run


def redrawn(checks: Checks, towers: bool = False) -> list[str]:
    """Types of the operations whose random numbers are others than the plain graph's in a step that is `split`.

    Their shape depends on values, or they are in a loop or another function.
    """
    return _Sorts(checks.graph, towers, checks).redrawn


def runs_in_parts(checks: Checks) -> bool:
    """Whether a step that is `split` has parts that run plainly."""
    return any(number % 2 == 0 for number in _Sorts(checks.graph, False, checks).cut().values())


def _lists_cross(graph: Graph, numbers: dict[str, int]) -> bool:
    """Whether a list of tensors would be handed from one part to another, of which XLA compiles one."""
    for name, number in numbers.items():
        for tensor in map(tensor_of, graph.nodes[name].input):
            source, _, index = tensor.partition(":")
            other = numbers.get(source, number)
            if other == number or not (number % 2 or other % 2) or source in graph.fixed:
                continue
            if graph.operation(source).outputs[int(index)].dtype == tf.variant:
                return True
    return False


class _Sorts:
    """What the operations of a graph are, as far as it matters for where they run.

    With `lists`, all that takes or gives a list of tensors runs plainly, as loops with gradients do.

    Attributes:
        refused: Whether XLA cannot compile some of them.
        constant: Names of those that need nothing but constants; every part makes its own.
        late: Names of those that check values in the middle of the step.
        waiting: Names of those that change variables, and so wait for `late`. Those that `late` itself needs do not.
    """

    def __init__(self, graph: Graph, towers: bool, checks: Checks, lists: bool = False):
        self._graph, self._towers = graph, towers
        self._inner: dict[str, list] = {}
        self._names = graph.upstream([*map(node_of, graph.outputs), *graph.effects])
        blocked = {name for name in self._names if any(map(_is_blocked, self._operations(name)))}
        self.refused = bool(blocked)
        slow = {name for name in self._names if towers and self._is(name, _TOWER)}
        if lists or (towers and any(map(self._grows, self._names))):
            slow |= {name for name in self._names if any(map(_has_lists, self._operations(name)))}
        drawn = {name for name in self._names if graph.nodes[name].op in RANDOM}
        self.late = self._names.intersection(checks.late)
        changing = {name for name in self._names if self.late and any(map(_changes, self._operations(name)))}
        self.waiting = changing - graph.upstream(self.late)
        blocked |= {name for name in self._names if graph.nodes[name].op in _DRAWN_FROM_VALUES}
        blocked |= self.late | self._names.intersection(checks.beside)
        self.constant = self._constants(blocked | slow | drawn)
        drawn = {name for name in drawn if node_of(graph.nodes[name].input[0]) in self.constant}  # the shape is known
        fronts = {name: graph.upstream([name]) for name in blocked | drawn}
        cheap = {name for name, front in fronts.items() if not any(self._is(each, HEAVY) for each in front)}
        plain = blocked | slow | (drawn & cheap)
        self._plain = plain.union(*(fronts[name] for name in cheap)) - self.constant

    @property
    def redrawn(self) -> list[str]:
        """Types of the operations that XLA would draw other random numbers for."""
        compiled = (op.type for name in self._names - self._plain for op in self._operations(name))
        return sorted(RANDOM.intersection(compiled))

    def cut(self) -> dict[str, int]:
        """The part that each runs in."""
        names = self._names - self.constant
        ops = {name: self._graph.nodes[name].op for name in names}
        needs = {name: [needed for needed in self._graph.needs(name) if needed in names] for name in names}
        for name in self.waiting:
            needs[name].extend(self.late)
        work = [name for name, op in ops.items() if op not in _NO_WORK]
        light = [name for name, op in ops.items() if op == "ReadVariableOp"]
        least, most = (PART_OPERATIONS, COMPILED_PARTS) if self._towers else (1, len(names))
        return cut(needs, self._plain, work, light, least, most)

    def _operations(self, name: str) -> list:
        """A node's operation with those of the functions that it calls; none of what was not traced."""
        if name not in self._inner:
            traced = name not in self._graph.fixed
            self._inner[name] = list(operations_of(self._graph.operation(name))) if traced else []
        return self._inner[name]

    def _is(self, name: str, beginnings: tuple[str, ...]) -> bool:
        return any(op.type.startswith(beginnings) for op in self._operations(name))

    def _grows(self, name: str) -> bool:
        """Whether it is a list without an end, of which XLA cannot tell the size."""
        empty = self._graph.nodes[name].op == "EmptyTensorList"
        return empty and (tf.get_static_value(self._graph.operation(name).inputs[1]) or -1) < 0

    def _constants(self, blocked: Collection[str]) -> set[str]:
        nodes = self._graph.nodes
        found: set[str] = set()
        for name in TopologicalSorter({name: self._graph.needs(name) for name in self._names}).static_order():
            inputs = nodes[name].input
            free = bool(inputs) and not any(i.startswith("^") for i in inputs)
            made = free and found.issuperset(map(node_of, inputs)) and not self._is_stateful(name)
            if nodes[name].op == "Const" or (made and name not in blocked):
                found.add(name)
        return found

    def _is_stateful(self, name: str) -> bool:
        return any(op.op_def is None or op.op_def.is_stateful for op in self._operations(name))


class _Piece:
    """The operations that run together as part `number`, compiled if that is odd.

    `numbers` has the part of every operation of the graph, `sorts` what they are.
    """

    def __init__(self, graph: Graph, number: int, numbers: dict[str, int], sorts: _Sorts, calls: StoredCalls | None):
        self._graph = graph
        own = {name for name, other in numbers.items() if other == number}
        self._nodes = own | graph.upstream({needed for name in own for needed in graph.needs(name)} & sorts.constant)
        self._takes = sorted(name for name in graph.used_by(own) if node_of(name) not in self._nodes)
        others = graph.used_by(name for name, other in numbers.items() if other != number)
        self._gives = sorted(name for name in others.union(graph.outputs) if node_of(name) in own)
        self._effects = [name for name in graph.effects if name in own]
        self._late = sorted(sorts.late & own)
        self._after = dict.fromkeys(sorts.waiting & own, self._late)
        self._compiled = xla_function(self._one_step, calls) if number % 2 else None

    def run(self, have: dict, checked: list) -> dict:
        """What other parts take, made from what they have made, which `have` has by name.

        `checked` is what has to have run before variables are changed; more is put there.
        """
        given = [have[name] for name in self._takes]
        with tf.control_dependencies(checked if self._after else []):
            made = self._made(given, checked)
        for x in made:
            if x.op.type.startswith("LookupTableFind"):  # knows its shape only where Python said so
                x.set_shape(x.op.inputs[1].shape)
        return dict(zip(self._gives, made, strict=True))

    def _made(self, given: Sequence, checked: list) -> list:
        if self._compiled is None and self._after and checked:  # what is put into a graph would not wait
            *made, done = tf.function(self._checked_step, autograph=False)(given)
            checked.append(done.op)
        elif self._compiled is None:
            made = self._put(given)
            checked += made[len(made) - len(self._late) :]
            made = made[: len(self._gives)]
        else:
            for name, x in zip(self._takes, given, strict=True):
                if x.dtype in (tf.variant, tf.resource) or not x.shape.is_fully_defined():
                    told = f"{name} is no tensor of a shape that is known: {x.dtype.name} {x.shape}"
                    raise NotSplittable(told, node_of(name))
            made = self._compiled(given)
        return made

    def _put(self, given: Sequence) -> list:
        named = dict(zip(self._takes, given, strict=True))
        return self._graph.put(self._nodes, [*self._gives, *self._effects, *self._late], named, self._after)

    def _one_step(self, given: Sequence) -> list:  # by its name it is known in what XLA dumps, if it is not kept
        return self._checked_step(given)[:-1]

    def _checked_step(self, given: Sequence) -> list:
        results = self._put(given)
        with tf.control_dependencies(results[len(self._gives) :]):
            return [tf.identity(x) for x in (*results[: len(self._gives)], tf.constant(True))]


def _is_blocked(op) -> bool:
    strings = [x for x in (*op.inputs, *op.outputs) if x.dtype == tf.string]
    if op.type == "Assert":  # XLA leaves it out; what it would say
        strings = [x for x in strings if x.op.type != "Const"]
    return op.type not in compilable_ops() or has_varying_shape(op) or (bool(strings) and op.type != "Const")


def _changes(op) -> bool:
    """Whether an operation changes a variable."""
    return op.type.startswith(_CHANGES) and not op.type.startswith(_READS)


def _has_lists(op) -> bool:
    return any(x.dtype == tf.variant for x in (*op.inputs, *op.outputs))
