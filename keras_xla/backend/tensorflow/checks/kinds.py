"""The operations that TensorFlow's kernels refuse bad values for, while XLA takes them in silence.

An index out of range is clamped or its update dropped, a label out of range makes a NaN, a division by zero gives -1,
and assertions are left out. Numbers of the data that no integer can hold, and shifts by more bits than there are, are
no errors: both make something of them, but not the same.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_xla.backend.tensorflow.checks.ranges import ANY, range_of
from keras_xla.backend.tensorflow.checks.scopes import LOOPS, Ref, Scope, Values
from keras_xla.backend.tensorflow.graphs.operations import grows_list

Bound = float | tuple[float, ...]  # one for each place along the last axis, if several


class Need(NamedTuple):
    """What must hold for an operation not to raise."""

    test: str  # `"within"`, `"castable"`, `"nonzero"`, `"true"`, `"finite"`, or `"never"` where nobody can tell
    ref: Ref | None = None  # of what; None for `"never"`
    low: Bound = -math.inf  # the least value, for `"within"` and `"castable"`
    high: Bound = math.inf  # the greatest


_UNKNOWN = [Need("never")]
# Singular ones are errors, or XLA's own algorithm stops before it is as near.
_NUMERIC = frozenset(
    {"MatrixInverse", "MatrixSolve", "MatrixTriangularSolve", "SelfAdjointEigV2", "Svd", "TridiagonalSolve"}
)
_STRICT = frozenset({"InvertPermutation", "SparseToDense"})
# Gradients of what may be infinite or NaN. TensorFlow's kernels give 0 where nothing depends on the output, and XLA
# multiplies that by infinity.
_STEEP = frozenset({"SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad"})
_ROOTS = ("Sqrt", "Rsqrt", "Reciprocal", "Inv")
# The inputs that XLA has to know when it compiles, which are sizes, places of diagonals, and axes. For another value it
# would compile again, at each step if they are of the batch.
_OPERATIONS_THAT_NEED = {
    (0,): "Fill Empty RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt ParameterizedTruncatedNormal "
    "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 "
    "StatelessRandomUniformFullIntV2 StatelessParameterizedTruncatedNormal Conv2DBackpropInput Conv3DBackpropInputV2 "
    "DepthwiseConv2dNativeBackpropInput Split",
    (1,): "BroadcastTo MirrorPad OneHot Pad PadV2 Reshape Tile ResizeBilinear ResizeNearestNeighbor TensorListReserve "
    "TopK TopKV2 Multinomial StatelessMultinomial RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D "
    "MatrixDiagPartV2 MatrixDiagPartV3 Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter "
    "Sum Mean Prod Max Min All Any EuclideanNorm ArgMax ArgMin Cumsum Cumprod CumulativeLogsumexp ReverseV2 Transpose "
    "ExpandDims",
    (2,): "LinSpace Slice MatrixSetDiagV2 MatrixSetDiagV3 NonMaxSuppressionV3 NonMaxSuppressionV4 Roll",
    (0, 1, 2): "Range",
    (1, 2): "SplitV SpaceToBatchND BatchToSpaceND MaxPoolV2",
    (1, 2, 3): "MatrixDiagV2 MatrixDiagV3",
    (-1,): "ConcatV2",
}
_KNOWN_TO_XLA = {kind: places for places, kinds in _OPERATIONS_THAT_NEED.items() for kind in kinds.split()}


def needs_of(values: Values, scope: Scope, op: tf.Operation) -> list[Need]:
    """What must hold for an operation, functions that it calls aside."""
    if op.type in _NUMERIC:
        return _UNKNOWN
    inputs = [Ref(scope, x.name) for x in op.inputs]
    if op.type == "SeluGrad" or (op.type in _STEEP and _may_be_of_zero(values, inputs[0])):  # SELU has two slopes at 0
        return _UNKNOWN
    if any(values.varies(inputs[i]) for i in _KNOWN_TO_XLA.get(op.type, ())) or _is_cut_by_values(values, op, inputs):
        return _UNKNOWN
    if op.type in _STRICT:
        return [] if all(values.value(x) is not None for x in inputs) else _UNKNOWN
    find = FOUND.get(op.type)
    return find(values, op, inputs) if find else []


def _dims(values: Values, ref: Ref) -> list[int | None] | None:
    shape = values.shape(ref)
    return None if shape.rank is None else shape.as_list()


def _index(ref: Ref, size: int | None) -> list[Need]:
    return _UNKNOWN if size is None else [Need("within", ref, 0, size - 1)]


def _size(values: Values, ref: Ref, axis: int) -> int | None:
    dims = _dims(values, ref)
    return None if dims is None or not -len(dims) <= axis < len(dims) else dims[axis]


def _along(axis: int) -> Callable:
    return lambda values, op, inputs: _index(inputs[1], _size(values, inputs[0], axis))


def _gather(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    axis = values.value(inputs[2]) if op.type == "GatherV2" else op.get_attr("batch_dims")
    return _UNKNOWN if axis is None else _index(inputs[1], _size(values, inputs[0], int(axis)))


def _places(values: Values, indices: Ref, dims: Sequence[int | None] | None) -> list[Need]:
    """Of indices with a place in so many dimensions along their last axis."""
    depth = _size(values, indices, -1)
    sizes = None if dims is None or depth is None else _known(dims[:depth])
    if depth is None or sizes is None:
        return _UNKNOWN
    return columns(values, indices, (0,) * depth, tuple(n - 1 for n in sizes))


def _known(dims: Sequence[int | None]) -> list[int] | None:
    """Sizes; None if one of them is not known."""
    sizes = [n for n in dims if n is not None]
    return sizes if len(sizes) == len(dims) else None


def columns(values: Values, ref: Ref, low: tuple[float, ...], high: tuple[float, ...]) -> list[Need]:
    """One need for each column, where the tensor was put together from them, and one that is for all if they agree."""
    origin = values.origin(ref)
    if not low:
        return []
    rank = values.shape(origin).rank
    if origin.op.type == "Pack" and rank is not None and origin.op.get_attr("axis") in (-1, rank - 1):
        parts = zip(origin.inputs(), low, high, strict=True)
        return [Need("within", part, least, most) for part, least, most in parts]
    if len(set(low)) == len(set(high)) == 1:
        return [Need("within", ref, low[0], high[0])]
    return [Need("within", ref, low, high)]


def _place(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    return _places(values, inputs[1], _dims(values, inputs[0]))


def _place_first(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    sizes = values.value(inputs[2])
    return _places(values, inputs[0], None if sizes is None else [int(n) for n in sizes])


def _segments(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    count = values.value(inputs[2])  # negative ones are left out
    return _UNKNOWN if count is None else [Need("within", inputs[1], -math.inf, int(count) - 1)]


def _lengths(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    size = _size(values, inputs[0], op.get_attr("seq_dim"))
    return _UNKNOWN if size is None else [Need("within", inputs[1], 0, size)]


def _of_integers(i: int, test: str, low: Bound = -math.inf) -> Callable:
    return lambda values, op, inputs: [Need(test, inputs[i], low)] if inputs[i].tensor.dtype.is_integer else []


def _slice(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    dims, sizes = _dims(values, inputs[0]), values.value(inputs[2])
    if values.needs(inputs[1], shapes=True) == frozenset():  # which XLA looks at when it compiles
        return []
    known = None if dims is None else _known(dims)
    if known is None or sizes is None:
        return _UNKNOWN
    highs = tuple(n - max(int(size), 0) for n, size in zip(known, sizes, strict=True))
    return columns(values, inputs[1], (0,) * len(known), highs)


def _strided_slice(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    dims, begin = _dims(values, inputs[0]), inputs[1]
    shrunk, others = op.get_attr("shrink_axis_mask"), op.get_attr("ellipsis_mask") | op.get_attr("new_axis_mask")
    if not shrunk or values.needs(begin, shapes=True) == frozenset():
        return []
    count = _size(values, begin, 0)
    sizes = None if dims is None or count is None else _known(dims[:count])
    if others or count is None or sizes is None:
        return _UNKNOWN
    taken = [bool(shrunk >> i & 1) for i in range(count)]
    low = tuple(-n if one else -math.inf for n, one in zip(sizes, taken, strict=False))
    high = tuple(n - 1 if one else math.inf for n, one in zip(sizes, taken, strict=False))
    return columns(values, begin, low, high)


def _may_be_of_zero(values: Values, output: Ref) -> bool:
    """Whether an output that a gradient was computed from may be that of 0, or of a number that has no root."""
    made = values.origin(output)
    least = np.finfo("float16" if output.tensor.dtype == tf.float16 else "float32").tiny  # XLA takes less for 0
    low, high = range_of(values, made.inputs()[0]) if made.op.type in _ROOTS else ANY
    return low < least and (made.op.type in ("Sqrt", "Rsqrt") or high > -least)


def _is_cut_by_values(values: Values, op: tf.Operation, inputs: list[Ref]) -> bool:
    """Whether values say how much a slice takes: XLA would count with room for more. A single entry is no slice."""
    if op.type == "Slice":  # -1 is all that is behind the begin
        sizes = values.value(inputs[2])
        return sizes is not None and bool((sizes < 0).any()) and values.varies(inputs[1])
    if op.type not in ("StridedSlice", "StridedSliceGrad"):
        return False
    _, begin, end, strides = inputs[:4]
    others = op.get_attr("shrink_axis_mask") | op.get_attr("ellipsis_mask") | op.get_attr("new_axis_mask")

    def any_varies(ref: Ref, left_out: int) -> bool:
        origin = values.origin(ref)
        parts = origin.inputs() if origin.op.type == "Pack" else [origin] * (_size(values, ref, 0) or 1)
        return any(values.varies(part) for i, part in enumerate(parts) if not (others | left_out) >> i & 1)

    if any_varies(begin, op.get_attr("begin_mask")) or any_varies(end, op.get_attr("end_mask")):
        return True
    return values.varies(strides)


def _random_limits(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    low, high = map(values.value, inputs[-2:])
    return _UNKNOWN if low is None or high is None or low.max() >= high.min() else []


def _entry(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    popped = values.origin(inputs[1]).op.type == "TensorListPopBack"  # in the gradient of one that was looked at
    return [] if popped else _index(inputs[1], _length(values, inputs[0]))


def _length(values: Values, handle: Ref) -> int | None:
    """Of a list of tensors."""
    for _ in range(100):
        handle = values.origin(handle)
        op, call = handle.op, handle.scope.call
        if op.type == "TensorListReserve":
            count = values.value(handle.inputs()[1])
            return None if count is None else int(count)
        if op.type == "TensorListFromTensor":
            return _size(values, handle.inputs()[0], 0)
        if op.type == "ZerosLike" or (op.type == "TensorListSetItem" and not grows_list(op)):
            handle = handle.inputs()[0]  # zeros are the gradient of a list that nobody uses
        elif op.type in LOOPS:
            handle = handle.inputs()[handle.tensor.value_index]
        elif op.type == "Placeholder" and call is not None and call[1].type in LOOPS:
            names = [x.name for x in handle.scope.graph.inputs]
            handle = Ref(call[0], call[1].inputs[names.index(handle.name)].name)
        else:
            return None
    return None


def _cast(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    dtype = op.outputs[0].dtype
    of_data = inputs[0].tensor.dtype.is_floating and dtype.is_integer and values.needs(inputs[0])
    return [Need("castable", inputs[0], dtype.min, dtype.max)] if of_data else []


def _shift(values: Values, op: tf.Operation, inputs: list[Ref]) -> list[Need]:
    return [Need("within", inputs[1], 0, 8 * inputs[0].tensor.dtype.size - 1)]


def _finite(i: int) -> Callable:
    return lambda values, op, inputs: [Need("finite", inputs[i])] if inputs[i].tensor.dtype.is_floating else []


def _test(test: str) -> Callable:
    return lambda values, op, inputs: [Need(test, inputs[0])]


FOUND: dict[str, Callable[[Values, tf.Operation, list[Ref]], list[Need]]] = {
    "Assert": _test("true"),
    "CheckNumerics": _test("finite"),
    "CheckNumericsV2": _test("finite"),
    "SparseSoftmaxCrossEntropyWithLogits": _along(-1),
    **dict.fromkeys(("InTopK", "InTopKV2"), _along(-1)),  # False for a class that there is not; XLA gives it a score
    "Bucketize": _finite(0),
    "UpperBound": _finite(1),
    "Cast": _cast,
    **dict.fromkeys(("LeftShift", "RightShift"), _shift),
    "ScatterNd": _place_first,
    "ReverseSequence": _lengths,
    "DenseBincount": _of_integers(0, "within", 0),
    "Bincount": _of_integers(0, "within", 0),
    "Pow": _of_integers(1, "within", 0),
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "TensorListGetItem": _entry,
    "TensorListSetItem": _entry,
    "Gather": _along(0),
    "GatherV2": _gather,
    "ResourceGather": _gather,
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), _place),
    **dict.fromkeys((f"UnsortedSegment{kind}" for kind in ("Sum", "Max", "Min", "Prod")), _segments),
    **dict.fromkeys(("Div", "FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod", "Mod"), _of_integers(1, "nonzero")),
    **dict.fromkeys(("RandomUniformInt", "StatelessRandomUniformInt", "StatelessRandomUniformIntV2"), _random_limits),
}
for _kind in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max"):
    FOUND |= {f"ResourceScatter{_kind}": _along(0)}
for _kind in ("Update", "Add", "Sub", "Min", "Max"):
    FOUND |= {f"ResourceScatterNd{_kind}": _place, f"TensorScatter{_kind}": _place}
CHECKED = frozenset(FOUND) | _NUMERIC | _STRICT
