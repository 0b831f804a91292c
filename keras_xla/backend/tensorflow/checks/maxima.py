"""Maxima and minima whose gradient looks for them among what they were taken of.

XLA may compute a tensor twice, once for its maximum and once for whoever uses it besides. In one of the two it may
contract a product and a sum into one operation (FMA), which rounds once, or leave out the rounding to 16 bits. Then
nothing equals the maximum. Its gradient, which is divided by how many do, is NaN; that of a segment's maximum is left
out. So TensorFlow's kernel takes the maximum, of a tensor that is in memory.
"""

import tensorflow as tf

from keras_xla.backend.tensorflow.checks.scopes import Ref, Scope, Values

_MAXIMA = frozenset(
    f"{kind}{what}{version}"
    for kind in ("", "Segment", "UnsortedSegment")
    for what in ("Max", "Min")
    for version in ("", "V2")
)
# Between a maximum and where it is compared, by which of their inputs.
_HANDED_ON = {"Reshape": 0, "ExpandDims": 0, "BroadcastTo": 0, "Gather": 0, "GatherV2": 0, "SelectV2": 1}
_FARTHEST = 8  # of these, one behind the other
_EXACT = frozenset(
    {
        *("Abs", "BatchToSpaceND", "BroadcastTo", "Cast", "ConcatV2", "ExpandDims", "Gather", "GatherV2", "MaxPool"),
        *("Maximum", "Minimum", "MirrorPad", "Neg", "Pack", "Pad", "PadV2", "Relu", "Relu6", "Reshape", "ReverseV2"),
        *(
            "SelectV2",
            "Slice",
            "SpaceToBatchND",
            "Split",
            "SplitV",
            "Squeeze",
            "StridedSlice",
            "Tile",
            "Transpose",
            "Unpack",
        ),
    }
)
_PRODUCTS = frozenset({"Mul", "Square", "LeakyRelu"})
_SUMS = frozenset({"Add", "AddV2", "AddN", "BiasAdd", "Sub"})
_IN_MEMORY = frozenset(  # what XLA computes once
    {
        *("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Const", "Conv2D", "Conv3D", "DepthwiseConv2dNative"),
        *("Conv2DBackpropInput", "Conv3DBackpropInputV2", "Einsum", "MatMul", "Placeholder"),
        *("ReadVariableOp", "ResourceGather", "StatelessWhile", "TensorListStack", "While"),
    }
)
_MOST = 60  # operations that are followed


def compared_maxima(values: Values, scope: Scope, op: tf.Operation) -> list[Ref]:
    """The maxima that an operation compares with what they were taken of, if that may be rounded in two ways."""
    if op.type != "Equal":
        return []
    one, other = (values.origin(Ref(scope, x.name)) for x in op.inputs)
    found = (_maximum(values, *pair) for pair in ((one, other), (other, one)))
    return [ref for ref in found if ref is not None and _rounds_in_two_ways(values, ref.inputs()[0])]


def _maximum(values: Values, ref: Ref, of: Ref) -> Ref | None:
    """The maximum of a tensor that another one hands on."""
    for _ in range(_FARTHEST):
        if ref.op.type in _MAXIMA:
            return ref if values.origin(ref.inputs()[0]) == of else None
        if ref.op.type not in _HANDED_ON:
            return None
        ref = values.origin(ref.inputs()[_HANDED_ON[ref.op.type]])
    return None


def _rounds_in_two_ways(values: Values, ref: Ref) -> bool:
    """Whether a sum in a tensor's making may be contracted with a product, or nothing is known of what makes it."""
    todo, seen = [(ref, False)], set[tuple[Ref, bool]]()
    while todo:
        ref, behind_sum = todo.pop()
        ref = values.origin(ref)
        if (ref, behind_sum) in seen or not ref.tensor.dtype.is_floating:
            continue
        seen.add((ref, behind_sum))
        kind = ref.op.type
        if kind in _IN_MEMORY:
            continue
        contracted = kind in _PRODUCTS and behind_sum
        unrounded = kind not in _EXACT and ref.tensor.dtype.size < 4
        if contracted or unrounded or len(seen) > _MOST or kind not in _EXACT | _PRODUCTS | _SUMS:
            return True
        todo += [(each, behind_sum or kind in _SUMS) for each in ref.inputs()]
    return False
