"""What a traced step does beside computing: which variables it writes, and what nobody could undo.

A step may be run for a trial only if all that it changes is variables, of which the trial gets copies. What else does
no harm is listed here, so that an operation that nobody has thought about is not run more often than the script asks.
"""

import functools

import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.operations import calls_unknown, grows_list, operations, operations_of
from keras_xla.private.tensorflow.graphs import captures, variables

_CALLS = frozenset({"If", "While", "Case", "StatefulPartitionedCall"})  # their functions are looked into
# Change no state, though TensorFlow counts them as stateful: they take a resource, or must not be optimized away. The
# checks raise an error, in the trial as in the step itself.
_READS = frozenset(
    {
        *("ReadVariableOp", "VarIsInitializedOp", "VariableShape", "ResourceGather", "ResourceGatherNd"),
        *("LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2"),
        *("Assert", "CheckNumerics", "CheckNumericsV2"),
        *("StatelessRandomGetAlg", "IsTensorFloat32Enabled", "DeviceIndex", "GuaranteeConst", "Empty", "DeepCopy"),
        *("DisableCopyOnRead", "XlaCallModule", "XlaDequantize", "_Arg", "_Retval"),
    }
)
WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
_CUDNN = ("CudnnRNN",)  # its state is that of its dropout
# Without a state, but a trial would call Python more often; and lists that grow, which XLA gives a wrong shape.
_UNFIT = frozenset({"PyFuncStateless", "TensorListResize"})  # as before TensorFlow 2.21; since then see `grows_list`


class Effects:
    """The effects of a traced function, given its `FuncGraph`."""

    def __init__(self, graph):
        self._graph = graph
        self._variables = {id(variable.handle): variable for variable in variables(graph)}
        self._outer = {inner.name: outer for outer, inner in captures(graph)}

    @functools.cached_property
    def lasting(self) -> tuple[str, ...]:
        """Types of the operations that a trial could not undo."""
        ops = list(operations(self._graph))
        kinds = {op.type for op in ops if not _can_be_undone(op)}
        kinds |= {f"{op.type} of a function without a graph" for op in ops if calls_unknown(op)}
        unknown = {f"{op.type} of what is no tf.Variable" for op, variable in self._written if variable is None}
        return tuple(sorted(kinds | unknown))

    @functools.cached_property
    def changed(self) -> tuple[tf.Variable, ...]:
        """The variables that it may write, in the order in which it knows them."""
        written = {id(variable) for _, variable in self._written}
        return tuple(variable for variable in variables(self._graph) if id(variable) in written)

    @functools.cached_property
    def _written(self) -> list[tuple]:
        """Each operation that writes, with a variable that it may write; None where nobody knows which one."""
        return [
            (op, self._variable_of(x))
            for op in self._graph.get_operations()
            if any(inner.type.startswith(WRITES) for inner in operations_of(op))
            for x in op.inputs
            if x.dtype == tf.resource
        ]

    def _variable_of(self, handle) -> tf.Variable | None:
        while handle.name not in self._outer and handle.op.type in ("Identity", "While", "StatelessWhile"):
            handle = handle.op.inputs[handle.value_index]  # loops hand handles on as they are
        return self._variables.get(id(self._outer.get(handle.name)))


def _can_be_undone(op) -> bool:
    if op.type in _CALLS or op.type in _READS:
        return True
    if op.type.startswith(WRITES):
        return bool(op.inputs) and op.inputs[0].dtype == tf.resource  # not a reference of TensorFlow 1
    if op.type.startswith(_CUDNN):
        return op.get_attr("dropout") == 0
    return op.op_def is not None and not op.op_def.is_stateful and op.type not in _UNFIT and not grows_list(op)
