"""Names of TensorFlow that it does not promise."""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from keras_xla.private.names import Gone, Name, otherwise

_SEEN = "TensorFlow 2.20 and 2.21"
_PLAIN = "steps run as plain Keras runs them"
_NOT_WATCHED = "functions that a script decorates with tf.function run plainly"

KERNELS = {
    device: Name(
        "tensorflow.python.util.pywrap_xla_ops",
        f"get_{device}_kernel_names",
        "the types of operations that XLA can compile",
        "nobody knows what XLA cannot compile before it has failed",
        _SEEN,
    )
    for device in ("cpu", "gpu")
}
FUNCTION = Name("tensorflow.Graph", "_get_function", "a function that a graph calls, by its name", _PLAIN, _SEEN)
CAPTURES = Name("tensorflow.FuncGraph", "captures", "the values from outside that a traced graph uses", _PLAIN, _SEEN)
CAPTURE = Name("tensorflow.FuncGraph", "capture", "lets a graph under construction use such a value", _PLAIN, _SEEN)
EFFECTS = Name("tensorflow.FuncGraph", "control_outputs", "what must run though nobody uses it", _PLAIN, _SEEN)
VARIABLES = Name("tensorflow.FuncGraph", "variables", "the variables that a traced graph uses", _PLAIN, _SEEN)
CONCRETE = tuple(
    Name("tensorflow.ConcreteFunction", name, f"the {what} of a traced function", _PLAIN, _SEEN)
    for name, what in (
        ("graph", "graph"),
        ("inputs", "flat inputs, with those that are captured"),
        ("outputs", "flat outputs"),
        ("captured_inputs", "values of what is captured"),
        ("structured_outputs", "outputs in their structure"),
    )
)
FLAT = Name(
    "tensorflow.ConcreteFunction",
    "_call_flat",
    "calls a traced function with flat inputs",
    "each call of an executable for generation takes up to a millisecond longer, and no step is tried on XLA",
    _SEEN,
)
_COMPILED_AGAIN = "executables for generation are not kept on disk: the next process compiles again"
DEFINITION = Name(
    "tensorflow.ConcreteFunction", "function_def", "what a traced function computes", _COMPILED_AGAIN, _SEEN
)
CONTEXT = tuple(
    Name("tensorflow.python.eager.context.context()", name, gives, _COMPILED_AGAIN, _SEEN)
    for name, gives in (
        ("add_function_def", "lets TensorFlow know a function by a name of our own"),
        ("function_call_options", "how functions are called, as a ConcreteFunction calls them"),
    )
)
START = Name(
    "tensorflow.python.eager.context.context()",
    "_initialize_physical_devices",
    "what TensorFlow runs before its first operation, and in which it reads TF_XLA_FLAGS",
    _COMPILED_AGAIN,
    _SEEN,
)
DEVICES = Name(
    "tensorflow.python.eager.context.context()",
    "_physical_devices",
    "the processors, once that has run",
    _COMPILED_AGAIN,
    _SEEN,
)
CALLED = Name(
    "tensorflow.Operation",
    "_set_func_attr",
    "has an operation call a function by another name",
    "training steps are not kept on disk: the next process compiles again",
    _SEEN,
)
_LOWERED_AGAIN = "the first call takes longer: a block of a model is lowered for XLA once for each layer"
ATTRIBUTE = Name("tensorflow.Operation", "_set_attr", "has XLA compile one call of a function", _LOWERED_AGAIN, _SEEN)
XLA_CONTEXT = Name(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
    "OptionalXlaContext",
    "in which TensorFlow traces what XLA compiles",
    _LOWERED_AGAIN,
    _SEEN,
)
EXECUTE = Name("tensorflow.python.eager.execute", "execute", "calls a function by its name", _COMPILED_AGAIN, _SEEN)
RECORDS = Name(
    "tensorflow.python.eager.record",
    "could_possibly_record",
    "whether a GradientTape, or another thing that records operations, is on in this thread",
    _NOT_WATCHED,
    _SEEN,
)
STOPS = Name(
    "tensorflow.python.eager.record",
    "stop_recording",
    "keeps a GradientTape that is on in this thread from recording",
    "`fit`, `evaluate` and `predict` fail where a `GradientTape` records them",
    _SEEN,
)
DEFAULTS = Name(
    "tensorflow.Function", "_default_values", "the defaults of a function's parameters", _NOT_WATCHED, _SEEN
)
TYPE = Name("tensorflow.Function", "function_type", "binds arguments to a function's parameters", _NOT_WATCHED, _SEEN)
COMPOSITE = Name(
    "tensorflow.__internal__",
    "CompositeTensor",
    "the class of ragged, sparse and other composite tensors",
    _NOT_WATCHED,
    _SEEN,
)
DETERMINISM = Name(
    "tensorflow.python.framework.config",
    "is_op_determinism_enabled",
    "whether tf.config.experimental.enable_op_determinism was called, or TF_DETERMINISTIC_OPS is set",
    "steps are timed where TensorFlow's op determinism is on, too",
    _SEEN,
)

Function = type(tf.function(lambda: None))  # what `tf.function` makes, which has no public name


def xla_kernels(on_gpu: bool) -> frozenset[str]:
    """The types of operations that XLA has a kernel for."""
    name = KERNELS["gpu" if on_gpu else "cpu"]
    try:
        from tensorflow.python.util import pywrap_xla_ops
    except ImportError:
        raise name.gone() from None
    return frozenset(name.of(pywrap_xla_ops)())


def flat_call(function: Any) -> Callable[[list[tf.Tensor]], Any]:
    """A traced function without captured tensors that change, to be called with its flat inputs.

    TensorFlow's own way there takes as long as a small executable: it looks at every input and captured value.
    """
    call, captured = FLAT.of(function), CONCRETE[3].of(function)
    return lambda inputs: call(inputs, captured)


def call_with(function: Any, args: tuple, others: Mapping[int, tf.Tensor]) -> Any:
    """Call a traced function with other tensors in place of those that it captured, by the ids of these."""
    given = [others.get(id(x), x) for x in CONCRETE[3].of(function)]
    kind = TYPE.of(function)
    return FLAT.of(function)(kind.unpack_inputs(kind.bind(*args)), given)


def at_start(flags: str, then: Callable[[], None]) -> None:
    """Have TensorFlow read these for `TF_XLA_FLAGS`, which it does before its first operation; `then` is called then.

    Raises:
        RuntimeError: if it has read them, or nobody knows.
    """
    too_late = "Executables cannot be kept: {}. Call keras_xla.compile_cache() right after the imports."
    try:
        from tensorflow.python.eager import context

        owner = context.context()
        initialize, devices = START.of(owner), DEVICES.of(owner)
    except (ImportError, Gone) as error:
        raise RuntimeError(f"Executables cannot be kept: {error}") from error
    if devices is not None:
        raise RuntimeError(too_late.format("TensorFlow has run something already"))
    lock = threading.Lock()

    def initialize_once(*args: Any, **kwargs: Any) -> Any:
        with lock:
            if vars(owner).get(START.name) is not initialize_once:  # another thread was here before
                return initialize(*args, **kwargs)
            before = os.environ.get("TF_XLA_FLAGS")
            os.environ["TF_XLA_FLAGS"] = flags
            try:
                done = initialize(*args, **kwargs)
                then()
                return done
            finally:
                os.environ.pop("TF_XLA_FLAGS", None) if before is None else os.environ.update(TF_XLA_FLAGS=before)
                vars(owner).pop(START.name, None)

    setattr(owner, START.name, initialize_once)


def definition(function: Any) -> tuple[Any, list]:
    """What a traced function computes, and the functions that it calls: `FunctionDef`s."""
    library = CONCRETE[0].of(function).as_graph_def().library
    return DEFINITION.of(function), list(library.function)


def named_function(definitions: list, optimized: bool = True) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
    """The first of several functions, called with flat inputs, after TensorFlow has got to know all by their names.

    `optimized` tells whether TensorFlow's own optimizers go over it, which XLA does not need.
    """
    try:
        from tensorflow.python.eager import context, execute
    except ImportError:
        raise EXECUTE.gone() from None
    owner, call = context.context(), EXECUTE.of(execute)
    add, options = (name.of(owner) for name in CONTEXT)
    for each in reversed(definitions):  # what is called comes first
        add(each)
    config = options.config_proto_serialized
    if not optimized:
        changed = tf.compat.v1.ConfigProto.FromString(config)
        changed.graph_options.rewrite_options.disable_meta_optimizer = True
        config = changed.SerializeToString(deterministic=True)
    how = dict(attrs=("executor_type", "", "config_proto", config), ctx=owner)
    first = definitions[0].signature
    return lambda inputs: call(first.name, len(first.output_arg), inputs=inputs, **how)


def call_as(name: str, function: Any, inputs: Any) -> Any:
    """Call a traced function in the graph under construction, which then knows it by a name of `named_function`.

    TensorFlow makes the call, so order, effects and gradients are those of any other. Raises `Gone` before that.
    """
    top = DEFINITION.of(function).signature.name
    CALLED.of(tf.Operation)
    outputs, calls = _with_calls(function, inputs)
    for op in calls:
        if op.get_attr("f").name == top:
            CALLED.of(op)("f", name)
    return outputs


def call_through_xla(function: Callable, args: tuple) -> Any:
    """Call a function of tensors, compiled by XLA, in the graph under construction.

    The call asks for XLA. If the function asked for it, as with `tf.function(jit_compile=True)`, TensorFlow would put
    in it what it calls, and lower that for XLA at each call. Raises `Gone` before anything is traced.
    """
    try:
        from tensorflow.python.eager.polymorphic_function import polymorphic_function
    except ImportError:
        raise XLA_CONTEXT.gone() from None
    context = XLA_CONTEXT.of(polymorphic_function)
    ATTRIBUTE.of(tf.Operation)

    def in_context(*args):
        with context(True):
            return function(*args)

    # A trace, for `tf.config.run_functions_eagerly` would put what it does into this graph.
    traced = tf.function(in_context, autograph=False).get_concrete_function(*args)
    outputs, calls = _with_calls(traced, *args)
    for op in calls:
        ATTRIBUTE.of(op)("_XlaMustCompile", tf.compat.v1.AttrValue(b=True))
    return outputs


def _with_calls(function: Callable, *args: Any) -> tuple[Any, list[tf.Operation]]:
    """What a function returns, and the calls of functions that it has put into the graph under construction."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    outputs = function(*args)
    made, kinds = graph.get_operations()[before:], ("PartitionedCall", "StatefulPartitionedCall")
    return outputs, [op for op in made if op.type in kinds]


def may_be_recorded() -> bool:
    """Whether something, such as a `tf.GradientTape`, may record what runs now in this thread."""
    try:
        from tensorflow.python.eager import record
    except ImportError:
        raise RECORDS.gone() from None
    return RECORDS.of(record)()


def unrecorded() -> contextlib.AbstractContextManager:
    """Within it, no `tf.GradientTape` of this thread records what runs."""
    try:
        from tensorflow.python.eager import record

        return STOPS.of(record)()
    except (ImportError, Gone):
        return contextlib.nullcontext()


def graph_of_function(graph: tf.Graph, name: str) -> tf.Graph | None:
    """The graph of a function that operations of a graph call; None for one that is not known as a graph."""
    return getattr(FUNCTION.of(graph)(name), "graph", None)


def captures(graph: tf.Graph) -> list[tuple[Any, tf.Tensor]]:
    """The values from outside that a traced graph uses, each with the tensor that stands for it inside."""
    return list(CAPTURES.of(graph))


def capture(graph: tf.Graph, x: Any) -> tf.Tensor:
    """What stands for a value from outside in a graph under construction."""
    return CAPTURE.of(graph)(x)


def effects(graph: tf.Graph) -> Collection[tf.Operation]:
    """The operations that must run though nobody uses what they give."""
    return EFFECTS.of(graph)


def variables(graph: tf.Graph) -> tuple[tf.Variable, ...]:
    """The variables that a traced graph uses."""
    return tuple(VARIABLES.of(graph))


@otherwise(False)
def ops_are_deterministic() -> bool:
    """Whether TensorFlow's op determinism is on: every run gives the same bits."""
    try:
        from tensorflow.python.framework import config
    except ImportError:
        raise DETERMINISM.gone() from None
    return DETERMINISM.of(config)()


def require_graphs() -> None:
    """Raise `Gone` unless a traced function can be taken apart and put together again."""
    concrete = tf.function(lambda: tf.constant(0), autograph=False).get_concrete_function()
    for name in CONCRETE:
        name.of(concrete)
    for name in (FUNCTION, CAPTURES, CAPTURE, EFFECTS, VARIABLES):
        name.of(concrete.graph)


def flat_arguments(function: Callable, concrete: Callable, args: tuple, kwargs: dict) -> list:
    """The tensors among the arguments of a `tf.function`, as one of its traces takes them."""
    bound = TYPE.of(function).bind_with_defaults(args, kwargs, DEFAULTS.of(function))
    bound = TYPE.of(concrete).bind(*bound.args, **bound.kwargs)
    return TYPE.of(concrete).unpack_inputs(bound)


def is_composite(x: Any) -> bool:
    """Whether `x` is a ragged or sparse tensor, or another one that is made of several."""
    try:
        return isinstance(x, COMPOSITE.of(tf.__internal__))
    except (AttributeError, Gone):
        return isinstance(x, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices))
