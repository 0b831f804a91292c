"""Maxima and minima that are compared with what they were taken of, as their gradients do, and Keras' F-scores.

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
# fmt: off
_EXACT = frozenset(
    {
        "Abs", "BatchToSpaceND", "BroadcastTo", "Cast", "ConcatV2", "ExpandDims", "Gather", "GatherV2", "MaxPool",
        "Maximum", "Minimum", "MirrorPad", "Neg", "Pack", "Pad", "PadV2", "Relu", "Relu6", "Reshape", "ReverseV2",
        "SelectV2", "Slice", "SpaceToBatchND", "Split", "SplitV", "Squeeze", "StridedSlice", "Tile", "Transpose",
        "Unpack",
    }
)
_FUNCTIONS = frozenset({"Elu", "Erf", "Exp", "Sigmoid", "Softmax", "Softplus", "Tanh"})  # one computation wherever
_PRODUCTS = frozenset({"Mul", "Square", "LeakyRelu"})
_SUMS = frozenset({"Add", "AddV2", "AddN", "BiasAdd", "Sub"})
_IN_MEMORY = frozenset(  # what XLA computes once
    {
        "Const", "Conv2D", "Conv2DBackpropInput", "Conv3D", "Conv3DBackpropInputV2", "DepthwiseConv2dNative",
        "Placeholder", "ReadVariableOp", "ResourceGather", "StatelessWhile", "TensorListStack", "While",
    }
)
# fmt: on
# In memory, too; but over a single place they are products of numbers to XLA.
_MATRIX_PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul"})
_KNOWN = _EXACT | _FUNCTIONS | _PRODUCTS | _SUMS | _MATRIX_PRODUCTS
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual"})
_MOST = 60  # operations that are followed


def compared_maxima(values: Values, scope: Scope, op: tf.Operation) -> list[Ref]:
    """The maxima that an operation compares with what they were taken of, if that may be rounded in two ways."""
    if op.type not in _COMPARISONS:
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
        inputs = ref.inputs()
        if kind in _IN_MEMORY or (kind in _MATRIX_PRODUCTS and all(_ends_with_several(values, x) for x in inputs)):
            continue
        contracted = kind in _PRODUCTS | _MATRIX_PRODUCTS and behind_sum
        unrounded = kind not in _EXACT and ref.tensor.dtype.size < 4
        if contracted or unrounded or kind not in _KNOWN or len(seen) > _MOST:
            return True
        todo += [(each, behind_sum or kind in _SUMS) for each in inputs]
    return False


def _ends_with_several(values: Values, ref: Ref) -> bool:
    """Whether the last axis of a tensor is known to have more than one place."""
    shape = values.shape(ref)
    return bool(shape.rank) and (shape[-1] or 1) > 1
