"""Between which numbers the values of a tensor lie, whatever the batch is."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from keras_xla.backend.tensorflow.checks.scopes import BRANCHES, LOOPS, Ref, Values
from keras_xla.backend.tensorflow.graphs.graph import SHAPES

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
_DEEPEST = 40  # operations that are followed
_SAME_VALUES = (
    *("Reshape", "ExpandDims", "Squeeze", "Tile", "BroadcastTo", "Slice", "StridedSlice", "ReverseV2", "Unpack"),
    *("Gather", "GatherV2", "GatherNd", "Max", "Min", "Transpose", "EnsureShape", "Fill"),
)
_JOINED = ("Pack", "ConcatV2", "Concat")
_UNIFORM = ("RandomUniformInt", "StatelessRandomUniformInt", "StatelessRandomUniformIntV2")


def range_of(values: Values, ref: Ref, depth: int = 0) -> Range:
    """The least and the greatest value that a tensor of numbers can have; NaNs are left aside."""
    ref = values.origin(ref)
    x = ref.tensor
    if not (x.dtype.is_integer or x.dtype.is_floating or x.dtype.is_bool) or depth > _DEEPEST:
        return ANY
    limits = (0, 1) if x.dtype.is_bool else (x.dtype.min, x.dtype.max) if x.dtype.is_integer else ANY
    known = values.value(ref)
    if known is not None:
        if not known.size:
            return 0, -1
        has_nan = known.dtype.kind == "f" and np.isnan(known).any()
        return ANY if has_nan else (known.min().item(), known.max().item())
    low, high = _made_by(values, ref, depth + 1)
    return (low, high) if limits[0] <= low and high <= limits[1] else limits  # or else it may have overflowed


def _made_by(values: Values, ref: Ref, depth: int) -> Range:
    op, index = ref.op, ref.tensor.value_index
    kind, inputs = op.type, ref.inputs()

    def of(i: int) -> Range:
        return range_of(values, inputs[i], depth)

    if kind == "Placeholder":
        return _of_loop(values, ref, depth)
    if kind in _SAME_VALUES:
        return of(1 if kind == "Fill" else 0)
    if kind in _JOINED:
        parts = inputs[:-1] if kind == "ConcatV2" else inputs[1:] if kind == "Concat" else inputs
        return _union([range_of(values, part, depth) for part in parts])
    if kind in ("Split", "SplitV"):
        return of(1 if kind == "Split" else 0)
    if kind in ("Pad", "PadV2"):
        return _union([of(0), of(2) if kind == "PadV2" else (0, 0)])
    if kind == "OneHot":
        return _union([of(2), of(3)])
    if kind in ("Select", "SelectV2"):
        return _selected(values, inputs, depth)
    if kind in BRANCHES:
        return _union([range_of(values, Ref(s, s.graph.outputs[index].name), depth) for s in ref.scope.called_by(op)])
    if kind in _SIZED:
        return _SIZED[kind](values, ref)
    if kind in _UNIFORM:
        least, limits = inputs[-2:]
        return range_of(values, least, depth)[0], range_of(values, limits, depth)[1] - 1
    if kind == "Range":
        (start, _), (_, limit), (step, _) = of(0), of(1), of(2)
        return (start, limit - 1 if ref.tensor.dtype.is_integer else limit) if step > 0 else ANY
    if kind == "Cast":
        low, high = of(0)
        if inputs[0].tensor.dtype.is_floating and ref.tensor.dtype.is_integer:
            return ref.tensor.dtype.min, math.trunc(high) if math.isfinite(high) else high  # which a NaN becomes
        return low, high
    if kind == "Mean" and ref.tensor.dtype.is_floating:  # of integers the sum may overflow
        return of(0)
    if kind == "Mul" and values.origin(inputs[0]) == values.origin(inputs[1]):
        return 0, math.inf
    if kind == "Pow":
        power = values.value(inputs[1])
        return (0, math.inf) if power is not None and (power % 2 == 0).all() else ANY
    if kind == "FloorMod":
        return _rest(of(0), of(1), whole=ref.tensor.dtype.is_integer)
    if kind in _COMPUTED:
        return _COMPUTED[kind](*map(of, range(len(inputs))))
    return ANY


def _of_loop(values: Values, ref: Ref, depth: int) -> Range:
    """Of what a loop counts: from where it starts to the limit in its condition."""
    call = ref.scope.call
    if call is None or call[1].type not in LOOPS:
        return ANY
    scope, loop = call
    body, condition = scope.called_by(loop)
    names = [x.name for x in ref.scope.graph.inputs]
    if ref.name not in names:
        return ANY
    i = names.index(ref.name)
    start, _ = range_of(values, Ref(scope, loop.inputs[i].name), depth)
    counter, end = body.graph.inputs[i], values.origin(Ref(body, body.graph.outputs[i].name))
    if end.op.type not in ("AddV2", "Add") or end.scope is not body:
        return ANY
    steps = [x for x in end.inputs() if values.origin(x) != Ref(body, counter.name)]
    if len(steps) != 1 or range_of(values, steps[0], depth)[0] < 0 or ref.scope is condition:
        return ANY
    return start, _limit(values, Ref(condition, condition.graph.outputs[0].name), condition.graph.inputs[i].name, depth)


def _limit(values: Values, condition: Ref, counter: str, depth: int) -> float:
    """What a counter does not exceed as long as a condition holds."""
    condition = values.origin(condition)
    if condition.op.type == "LogicalAnd":
        return min(_limit(values, part, counter, depth) for part in condition.inputs())
    if condition.op.type == "Less" and values.origin(condition.inputs()[0]) == Ref(condition.scope, counter):
        limit = condition.inputs()[1]
        return range_of(values, limit, depth)[1] - (1 if limit.tensor.dtype.is_integer else 0)
    return math.inf


def _selected(values: Values, inputs: Sequence[Ref], depth: int) -> Range:
    condition, *sides = inputs
    ranges = []
    for taken, side in zip((True, False), sides, strict=True):
        low, high = range_of(values, side, depth)
        least, most = _where(values, condition, taken, values.origin(side), depth)
        ranges.append((max(low, least), min(high, most)))
    if whole := negative_counted_back(values, inputs):
        x, size = whole
        low, high = range_of(values, x, depth)
        ranges[0] = low + size, min(high, -1) + size
    return _union([part for part in ranges if part[0] <= part[1]])


def _where(values: Values, condition: Ref, taken: bool, x: Ref, depth: int) -> Range:
    """What a condition tells of a tensor of whole numbers, where it holds or where it does not."""
    condition = values.origin(condition)
    kind = condition.op.type
    if kind == ("LogicalAnd" if taken else "LogicalOr") and depth < _DEEPEST:
        first, second = (_where(values, part, taken, x, depth + 1) for part in condition.inputs())
        return max(first[0], second[0]), min(first[1], second[1])
    if kind not in _COMPARED or not x.tensor.dtype.is_integer:
        return ANY
    kind = kind if taken else _OPPOSITE[kind]
    left, right = condition.inputs()
    if values.origin(left) != x:
        left, right, kind = right, left, _TURNED[kind]
    if values.origin(left) != x:
        return ANY
    low, high = range_of(values, right, depth)
    return {"Less": (-math.inf, high - 1), "LessEqual": (-math.inf, high), "Greater": (low + 1, math.inf)}.get(
        kind, (low, math.inf)
    )


_COMPARED = ("Less", "LessEqual", "Greater", "GreaterEqual")
_OPPOSITE = {"Less": "GreaterEqual", "LessEqual": "Greater", "Greater": "LessEqual", "GreaterEqual": "Less"}
_TURNED = {"Less": "Greater", "LessEqual": "GreaterEqual", "Greater": "Less", "GreaterEqual": "LessEqual"}


def negative_counted_back(values: Values, inputs: Sequence[Ref]) -> tuple[Ref, int] | None:
    """The `x` and `n` of `where(x < 0, x + n, x)`, with which Keras lets indices count from the end, if it is that."""
    condition, back, x = map(values.origin, inputs)
    if condition.op.type != "Less" or back.op.type not in ("AddV2", "Add"):
        return None
    (compared, zero), (added, number) = condition.inputs(), back.inputs()
    same = values.origin(compared) == values.origin(added) == x
    nothing, size = values.value(zero), values.value(number) if same else None
    if size is None or size.size != 1 or nothing is None or nothing.any():
        return None
    return x, int(size.item())


def _union(ranges: Sequence[Range]) -> Range:
    return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else ANY


def _products(a: Range, b: Range) -> Range:
    found = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(found), max(found)


def _rest(x: Range, by: Range, whole: bool) -> Range:
    """Of `x mod by`, with the sign of `by`, of whole numbers or of others."""
    most = by[1] - 1 if whole else by[1]
    return (0, most if x[1] >= by[1] else max(x[1], 0 if x[0] >= 0 else most)) if by[0] > 0 else ANY


def _quotient(x: Range, by: Range) -> Range:
    return (x[0] // by[1] if math.isfinite(by[1]) else 0, x[1] // by[0]) if x[0] >= 0 and by[0] > 0 else ANY


def _least(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), min(a[1], b[1])


def _greatest(a: Range, b: Range) -> Range:
    return max(a[0], b[0]), max(a[1], b[1])


def _rounded(by: Callable) -> Callable[[Range], Range]:
    def rounded(x: Range) -> Range:
        low, high = (by(n) if math.isfinite(n) else n for n in x)
        return low, high

    return rounded


_COMPUTED: dict[str, Callable[..., Range]] = {
    "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "AddV2": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "Mul": _products,
    "Neg": lambda a: (-a[1], -a[0]),
    "Abs": lambda a: (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a))),
    "Minimum": _least,
    "Maximum": _greatest,
    "ClipByValue": lambda a, low, high: _least(_greatest(a, low), high),
    "FloorDiv": _quotient,
    "Floor": _rounded(math.floor),
    "Ceil": _rounded(math.ceil),
    "Round": _rounded(round),
    "Rint": _rounded(round),
    "Relu": lambda a: (max(a[0], 0), max(a[1], 0)),
    "Relu6": lambda a: (0, 6),
    "Sigmoid": lambda a: (0, 1),
    "Softmax": lambda a: (0, 1),
    "Tanh": lambda a: (-1, 1),
    **dict.fromkeys(("Exp", "Rsqrt", "Softplus", "Square", "SquaredDifference"), lambda *_: (0, math.inf)),
    "Sqrt": lambda a: (math.sqrt(max(a[0], 0)), math.inf),
    "Sum": lambda a, axis: (0, math.inf) if a[0] >= 0 else ANY,
    **dict.fromkeys(("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"), lambda *_: (0, 1)),
}


def _size(values: Values, ref: Ref, axis: int | None) -> float:
    """Of the first input along an axis; infinite if nobody knows."""
    shape = values.shape(ref.inputs()[0])
    size = shape[axis] if shape.rank and axis is not None else None
    return math.inf if size is None else size


def _index_along(values: Values, ref: Ref) -> Range:
    axis = values.value(ref.inputs()[1])
    return 0, max(_size(values, ref, None if axis is None else int(axis)) - 1, 0)


def _index_of_any(values: Values, ref: Ref) -> Range:
    rank = values.shape(ref.inputs()[0]).rank
    return 0, math.inf if rank is None else max([0, *(_size(values, ref, axis) - 1 for axis in range(rank))])


_SIZED: dict[str, Callable[[Values, Ref], Range]] = {
    **dict.fromkeys(SHAPES, lambda *_: (0, math.inf)),
    "ArgMax": _index_along,
    "ArgMin": _index_along,
    "TopKV2": lambda values, ref: (0, max(_size(values, ref, -1) - 1, 0)) if ref.tensor.value_index else ANY,
    "LowerBound": lambda values, ref: (0, _size(values, ref, -1)),
    "UpperBound": lambda values, ref: (0, _size(values, ref, -1)),
    "Bucketize": lambda _, ref: (0, len(ref.op.get_attr("boundaries"))),
    "Where": _index_of_any,
}
