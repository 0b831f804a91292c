"""What must be looked at before, or within, a compiled step so that errors of plain TensorFlow survive XLA.

What depends on the batch alone by cheap operations (ids, labels, most assertions) is looked at before the step runs.
If it does not hold, the batch is for the plain graph, which raises its own error, in its own words, or does not. What
depends on more is left to its own kernel in the middle of the step; see `partial.split`.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_xla.backend.tensorflow.checks.kinds import CHECKED, Bound, Need, needs_of
from keras_xla.backend.tensorflow.checks.maxima import compared_maxima
from keras_xla.backend.tensorflow.checks.ranges import negative_counted_back, range_of
from keras_xla.backend.tensorflow.checks.scopes import BRANCHES, CALLS, CHEAP, LOOPS, Ref, Scope, Values, operations_in
from keras_xla.backend.tensorflow.graphs.graph import Graph, hidden, node_of
from keras_xla.backend.tensorflow.graphs.operations import is_of_sparse_gradients

_SAME_ELEMENTS = ("Reshape", "ExpandDims", "Squeeze", "Transpose")
_SIZED_BY_INPUT = ("DenseBincount", "Bincount")  # by the second: their output may be as long as the data say


class Checks:
    """The checks in a traced step, for flat inputs with the static shapes of `specs`; its own batch axis may be open.

    Attributes:
        graph: The step, taken apart, with the shapes fixed.
        early: What a batch must fulfil.
        late: Names of the operations of the step that have to run plainly, for what they or functions that they call
            check is not known before.
        beside: Names of those that run plainly, too: they make the indices for `late`, or are maxima of what XLA may
            round in two ways.
    """

    def __init__(self, concrete, specs: Sequence[tf.TensorSpec]):
        self.graph = graph = Graph(concrete)
        kinds = CHECKED.union(CALLS, BRANCHES, LOOPS)
        used = graph.upstream([*map(node_of, graph.outputs), *graph.effects])
        graph.fix_shapes(specs, [name for name in used if graph.nodes[name].op in kinds])
        self._values = Values(graph)
        self._guarded: dict[Ref, list[tuple]] = {}
        self._bounds: dict[tuple[str, Ref, int], tuple[Bound, Bound]] = {}
        self.late: dict[str, None] = {}
        self.beside: dict[str, None] = {}
        for scope, op in operations_in(self._values.top):
            if (scope.root or op.name) in used:
                for need in needs_of(self._values, scope, op):
                    self._add(need, scope, op)
                for ref in compared_maxima(self._values, scope, op):
                    self.beside[ref.scope.root or ref.op.name] = None
        self.early = [Need(test, ref, *bounds) for (test, ref, _), bounds in self._bounds.items()]

    def _add(self, need: Need, scope: Scope, op: tf.Operation) -> None:
        if need.ref is not None:
            need, ref = self._moved(need, need.ref)
            if self._holds(need, ref, scope):
                return
            branches = ref.scope.called_by(ref.op) if ref.op.type in BRANCHES else []
            for branch in branches:
                result = Ref(branch, branch.graph.outputs[ref.tensor.value_index].name)
                self._add(need._replace(ref=result), scope, op)
            if branches:
                return
            inputs = self._values.needs(ref)
            if inputs:
                key = need.test, ref, _columns(need.low)
                low, high = self._bounds.get(key, (need.low, need.high))
                self._bounds[key] = _each(max, low, need.low), _each(min, high, need.high)
                return
        if is_of_sparse_gradients(op):  # an index that Keras computes from those which were looked at where they began
            return
        if op.type in _SIZED_BY_INPUT and self._values.value(Ref(scope, op.inputs[1].name)) is None:
            return  # XLA could not go on from what it makes, as it would not know its shape
        if need.ref is not None:
            self._guarded.setdefault(need.ref, []).append((scope, need.test, need.low, need.high))
            self._keep_whole_numbers(need.ref)
        self.late[scope.root or op.name] = None

    def _keep_whole_numbers(self, ref: Ref) -> None:
        """Have a late operation find the indices that plain TensorFlow makes: XLA makes others of what is no number."""
        todo = [ref]
        while todo:
            ref = self._values.origin(todo.pop())
            inside = ref.scope is self._values.top and ref.op.name not in self.beside
            if inside and ref.tensor.dtype.is_integer and ref.op.type in CHEAP and ref.op.inputs:
                self.beside[ref.op.name] = None
                todo += ref.inputs()

    def _moved(self, need: Need, ref: Ref) -> tuple[Need, Ref]:
        """The same of a tensor further up than `ref`, from which others may be made, too; and that tensor."""
        values, ref, low, high = self._values, self._values.origin(ref), need.low, need.high
        while need.test != "true" and need.test != "finite":
            inputs = ref.inputs()
            if ref.op.type == "Cast" and _keeps(inputs[0].tensor.dtype, ref.tensor.dtype, low, high):
                ref = values.origin(inputs[0])
            elif isinstance(low, tuple) or isinstance(high, tuple):
                break
            elif ref.op.type in _SAME_ELEMENTS:
                ref = values.origin(inputs[0])
            elif (
                ref.op.type == "SelectV2" and low in (0, -math.inf) and (found := negative_counted_back(values, inputs))
            ):
                x, size = found
                if not 0 < size <= high + 1:
                    break
                ref, low = x, -size if low == 0 else low
            else:
                break
        return Need(need.test, ref, low, high), ref

    def _holds(self, need: Need, ref: Ref, scope: Scope) -> bool:
        """Whether it can be told that it always holds of `ref`, or that it was looked at before."""
        values = self._values
        if ref.op.type == "TensorListPopBack":
            return True  # the gradient of an operation that had it
        for where, test, low, high in self._guarded.get(ref, ()):
            alike = where in (values.top, scope) and test == need.test and _columns(low) == _columns(need.low)
            if alike and _each(min, low, need.low) == need.low and _each(max, high, need.high) == need.high:
                return True
        if need.test in ("finite", "castable"):  # of a NaN no range tells
            return False
        if isinstance(need.low, tuple) or isinstance(need.high, tuple):
            known = values.value(ref)
            return known is not None and bool(((known >= need.low) & (known <= need.high)).all())
        low, high = range_of(values, ref)
        if need.test == "true":
            return low > 0
        if need.test == "nonzero":
            known = values.value(ref)
            return low > 0 or high < 0 or (known is not None and bool(known.all()))
        return low > high or (need.low <= low and high <= need.high)

    def predicate(self, flat: Sequence[tf.Tensor]) -> tf.Tensor:
        """Whether all that is early holds for the flat inputs of the step, in the graph under construction."""
        # These are the operations for a full batch, such as a Reshape to its size. TensorFlow's optimizer would take
        # that for the size of every batch, also where the size is asked for in front of this.
        given = dict(zip(self._values.graph.inputs, flat, strict=True))
        taken = sorted({name for need in self.early if need.ref for name in self._values.needs(need.ref) or ()})
        given |= zip(taken, hidden([given[name] for name in taken]), strict=True)
        made: dict[Ref, tf.Tensor] = {}
        with tf.device("CPU:0"):  # where the batch comes from: no one waits for another device
            terms = [
                _term(need, self._values.made(need.ref, given, made)) for need in self.early if need.ref is not None
            ]
            return terms[0] if len(terms) == 1 else tf.reduce_all(tf.stack(terms))


def _keeps(dtype: tf.DType, other: tf.DType, low: Bound, high: Bound) -> bool:
    """Whether whole numbers within the bounds are the same numbers in another dtype."""
    if not (dtype.is_integer and other.is_integer):
        return False
    bounded = not isinstance(low, tuple) and not isinstance(high, tuple) and math.isfinite(low) and math.isfinite(high)
    return bounded or (dtype.min >= other.min and dtype.max <= other.max)


def _columns(bound: Bound) -> int:
    return len(bound) if isinstance(bound, tuple) else 0


def _each(choose: Callable, a: Bound, b: Bound) -> Bound:
    return tuple(map(choose, a, b)) if isinstance(a, tuple) and isinstance(b, tuple) else choose(a, b)


def _term(need: Need, x: tf.Tensor) -> tf.Tensor:
    if need.test == "true":
        return x if x.shape.rank == 0 else tf.reduce_all(x)
    if need.test == "finite":
        return tf.reduce_all(tf.math.is_finite(x))
    if need.test == "castable":
        x = tf.cast(x, tf.float32) if x.dtype.size == 1 else x  # kinds of float8 have no order
        low, high = (_whole_numbers(bound)[0] for bound in (need.low, need.high))
        return tf.reduce_all((x > tf.cast(low - 1.0, x.dtype)) & (x < tf.cast(high + 1.0, x.dtype)))
    if need.test == "nonzero":
        return tf.reduce_all(tf.not_equal(x, tf.zeros((), x.dtype)))
    if isinstance(need.low, tuple) or isinstance(need.high, tuple):
        x, axes = tf.cast(x, tf.int64), tf.range(tf.rank(x) - 1)
        low, high = (tf.constant(_whole_numbers(each), tf.int64) for each in (need.low, need.high))
        return tf.reduce_all((tf.reduce_min(x, axes) >= low) & (tf.reduce_max(x, axes) <= high))
    if need.low == -math.inf:
        return tf.reduce_max(tf.cast(x, tf.int64)) <= int(need.high)
    if need.high == math.inf:
        return tf.reduce_min(x) >= int(need.low)
    unsigned = {tf.int32: tf.uint32, tf.int64: tf.uint64}.get(x.dtype)
    if unsigned is None:
        x, unsigned = tf.cast(x, tf.int64), tf.uint64
    x = x - int(need.low) if need.low else x
    return tf.reduce_max(tf.bitcast(x, unsigned)) < int(need.high - need.low) + 1  # below is far above, too


def _whole_numbers(bound: Bound) -> list[int]:
    each = bound if isinstance(bound, tuple) else (bound,)
    return [int(max(min(n, tf.int64.max), tf.int64.min)) for n in each]
