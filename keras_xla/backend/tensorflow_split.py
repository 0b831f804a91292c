"""A traced step in two parts: what XLA cannot compile or is bad at, which runs first, and the rest in one executable.

Two things leave the compiled part. Operations without an XLA kernel (string lookups, hash tables), as long as they need
the batch and no result of the rest. And random numbers: XLA on CPU makes them one at a time, anew for each use, and by
another algorithm than TensorFlow's kernels. So the split step is faster than the whole one, and draws the same dropout
masks as the plain graph does with the same seeds.
"""

from collections.abc import Callable, Collection, Sequence

import tensorflow as tf

from keras_xla.backend.tensorflow_graph import Graph, node_of, tensor_of
from keras_xla.backend.tensorflow_ops import compilable_ops

RANDOM = frozenset(  # whose first operand is the shape
    {
        *(f"StatelessRandom{kind}{version}" for kind in ("Uniform", "UniformInt", "Normal") for version in ("", "V2")),
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
    }
)
HEAVY = ("MatMul", "BatchMatMul", "Conv", "DepthwiseConv", "Einsum", "While", "StatelessWhile")
_WRITES = ("Assign", "ResourceApply", "ResourceScatter", "Rng")


class NotSplittable(Exception):
    """Why a step cannot be run in two parts."""


def split(concrete, specs: Sequence[tf.TensorSpec]) -> Callable:
    """A traced step as a function that runs as much of it as possible in one XLA executable.

    Args:
        concrete: The traced step; its batch axis may be open.
        specs: Its flat inputs with the static shapes to compile for.

    Returns:
        `run(flat inputs) -> outputs`, to be called in a `tf.function`.

    Raises:
        NotSplittable: Such operations need results of the rest, change variables, or make tensors of varying shape.
    """
    graph = Graph(concrete)
    blocked = {name for name in graph.nodes if _is_blocked(graph.operation(name))}
    drawn = {name for name, node in graph.nodes.items() if node.op in RANDOM}
    drawn &= _fix_shapes(graph, specs, drawn) if drawn else drawn
    drawn = {name for name in drawn if not _changes(graph, graph.upstream([name]))}
    front = graph.upstream(blocked | drawn)
    _check(graph, front)
    stop = blocked | drawn
    effects = [name for name in graph.effects if name not in stop]
    core = graph.upstream([*map(node_of, graph.outputs), *effects], stop=stop)
    used = {tensor_of(i) for name in core for i in graph.nodes[name].input if not i.startswith("^")}
    crossing = sorted(name for name in used | set(graph.outputs) if node_of(name) in stop)
    return _assemble(graph, specs, front, sorted(stop), core, crossing, effects)


def _is_blocked(op) -> bool:
    strings = [x for x in (*op.inputs, *op.outputs) if x.dtype == tf.string]
    if op.type == "Assert":  # XLA leaves it out; what it would say
        strings = [x for x in strings if x.op.type != "Const"]
    return op.type not in compilable_ops() or (bool(strings) and op.type != "Const")


def _fix_shapes(graph: Graph, specs: Sequence[tf.TensorSpec], drawn: Collection[str]) -> set[str]:
    """Give random operations a constant shape, so that they need no layer's output to know it; those that have one."""
    shapes, drawn = {}, sorted(drawn)

    def probe(*arguments):
        tensors = graph.put(arguments, graph.upstream(drawn), [f"{name}:0" for name in drawn])
        shapes.update(
            {name: x.shape.as_list() for name, x in zip(drawn, tensors, strict=True) if x.shape.is_fully_defined()}
        )
        return tf.zeros(())

    tf.function(probe, autograph=False).get_concrete_function(*specs)
    for name, shape in shapes.items():
        kind = graph.operation(name).inputs[0].dtype
        value = tf.make_tensor_proto(shape, dtype=kind)
        constant = tf.compat.v1.NodeDef(name=f"{name}/static_shape", op="Const")
        constant.attr["dtype"].type = value.dtype
        constant.attr["value"].tensor.CopyFrom(value)
        graph.nodes[constant.name] = constant
        graph.nodes[name].input[0] = constant.name
    return set(shapes)


def _changes(graph: Graph, nodes: Collection[str]) -> list[str]:
    return [name for name in nodes if graph.nodes[name].op.startswith(_WRITES)]


def _check(graph: Graph, front: Collection[str]) -> None:
    if changed := _changes(graph, front):
        raise NotSplittable(f"what must run in front changes variables ({changed[0]})")
    heavy = [name for name in front if graph.nodes[name].op.startswith(HEAVY)]
    if heavy:
        raise NotSplittable(f"what XLA cannot compile needs the result of {heavy[0]} ({graph.nodes[heavy[0]].op})")


def _assemble(graph: Graph, specs, front, stop, core, crossing, effects) -> Callable:
    compilable = [i for i, spec in enumerate(specs) if spec.dtype != tf.string]

    def one_step(arguments, given):
        flat: list = [None] * len(specs)
        for i, x in zip(compilable, arguments, strict=True):
            flat[i] = x
        given = dict(zip(crossing, given, strict=True))
        inside = [name for name in graph.outputs if name not in given]
        results = graph.put(flat, core, [*inside, *effects], given)
        made = dict(zip(inside, results, strict=False)) | given
        with tf.control_dependencies(results[len(inside) :]):
            return [tf.identity(made[name]) for name in graph.outputs]

    compiled = tf.function(one_step, jit_compile=True, autograph=False)

    def run(flat):
        results = graph.put(flat, front, [*crossing, *stop])[: len(crossing)]
        for name, x in zip(crossing, results, strict=True):
            if x.op.type.startswith("LookupTableFind"):  # knows its shape only where Python said so
                x.set_shape(x.op.inputs[1].shape)
            if not x.shape.is_fully_defined():
                raise NotSplittable(f"the shape of {name} varies: {x.shape}")
        return graph.packed(compiled([flat[i] for i in compilable], results))

    return run
