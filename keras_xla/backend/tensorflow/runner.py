"""Runs the train, test and predict steps of a model on TensorFlow, each batch in the way that suits it."""

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.filled_batch import FilledBatch
from keras_xla.backend.new_shapes import NewShapes, WayFailed
from keras_xla.backend.tensorflow.executable import Executable
from keras_xla.backend.tensorflow.graph import leaves_of, repack
from keras_xla.backend.tensorflow.last_batch import ROWS, Shapes, fillable
from keras_xla.backend.tensorflow.predict_outputs import Gathered, joined
from keras_xla.backend.tensorflow.rows import collectable
from keras_xla.backend.tensorflow.stream import Stream, streams
from keras_xla.backend.tensorflow.trace import Trace, without_optionals
from keras_xla.backend.tensorflow.ways import shapes_of


class Runner:
    """One kind of step of one model.

    Args:
        step: Takes a batch, returns a structure of tensors: the model's `train_step`, say.
        names: `names(batch)` names the tensors of a batch.
        decide: Answers a `NewShapes` with the way to run batches of such shapes.
        compiled: `compiled(leaves, seconds, way)` is told of every executable, with the `(name, shape, dtype)` of the
            batch that it is for.
        failed: `failed(new_shapes, way, reason, node) -> way` answers when a way that was not tried does not work, for
            that reason, at that operation (see `WayFailed`); may raise.
        again: `again(shapes)` is told of batches for whose shapes the plain graph was the answer, of each one beside
            the usual ones; whether to ask anew.
        before: `before(spec)` is called before the step is traced for batches of that structure.

    Attributes:
        way: In which the last batch ran.
        settled: Whether the last run neither decided nor compiled anything.
        filled_step: `filled_step(spec)` gives the step to trace for batches of a structure of `tf.TypeSpec`: one that
            takes a `FilledBatch`, so that smaller batches run in the executable of full ones, or None for the usual
            step. Only where XLA runs every batch; else None.
    """

    def __init__(
        self,
        step: Callable,
        names: Callable,
        decide: Callable,
        compiled: Callable,
        failed: Callable,
        again: Callable,
        before: Callable | None = None,
    ):
        self._step, self._names, self._before = step, names, before
        self._decide, self._compiled, self._failed, self._again = decide, compiled, failed, again
        self._specs: dict[str, Any] = {}
        self._opened: dict[str, str] = {}  # the specs but for the number of rows
        self._traces: dict[str, Trace] = {}
        self._chosen: dict[tuple[str, Shapes], Executable] = {}
        self._made: dict[tuple, Executable] = {}
        self._first_shapes: dict[str, Shapes] = {}
        self._main: dict[str, Executable] = {}
        self._usual: dict[str, Shapes] = {}  # for which those were chosen
        self._iterator: tuple[Callable, str] = (lambda: None, "")
        self._lock = threading.RLock()  # several threads may predict
        self.way, self.settled = "", False
        self.filled_step: Callable | None = None

    def run(self, iterator: Iterator, count: int = 1) -> tuple[Any, int]:
        """Train or test on the next batches.

        Args:
            iterator: A `tf.data` iterator, or any other of batches.
            count: How many, unless the data end.

        Returns:
            The outputs of the last step, and how many were run.

        Raises:
            StopIteration: There is no batch left.
        """
        if not isinstance(iterator, tf.data.Iterator):
            return self._run_batches(iterator, count)
        self.settled = True
        new = self._iterator[0]() is not iterator
        key = self._key_of(iterator)
        pending, outputs, ran = tf.experimental.Optional.empty(iterator.element_spec), None, 0
        if new or key not in self._main or self._stale(key):  # a pass over data begins with batches of the usual shapes
            pending = iterator.get_next_as_optional()
            if not pending.has_value():
                raise StopIteration
            self._main[key] = self._choose(key, pending, iterator)
            self._usual[key] = shapes_of(without_optionals(pending.get_value()))
        while ran < count:
            self.way = self._main[key].way
            try:
                made, done, pending = self._main[key].feed(iterator, count - ran, pending)
            except WayFailed as error:  # before it ran anything
                self._main[key] = self._instead_of(self._main[key], error)
                continue
            if done:
                outputs, ran = made, ran + done
            if ran == count or not pending.has_value():
                break
            other = self._choose(key, pending, iterator)
            if other.way == "graph":  # this batch only: those to come may have the usual shapes
                outputs, done, pending = other.feed(iterator, 1, pending)
                self.way, ran = (self.way if ran else other.way), ran + done
            else:
                self._main[key] = other
                self._usual[key] = shapes_of(without_optionals(pending.get_value()))
        if not ran:
            raise StopIteration
        return repack(self._main[key].trace.concrete.structured_outputs, outputs), ran

    def run_batch(self, batch: Any) -> Any:
        """The outputs of one step on a batch of arrays or tensors."""
        self.settled = True
        batch = keras.tree.map_structure(_tensor, without_optionals(batch))
        shapes = shapes_of(batch)
        key = self._key_of_tensors(batch, shapes)
        chosen = self._for_batch(key, batch, shapes)
        self.way = chosen.way
        try:
            return chosen.run(batch)
        except WayFailed as error:
            return self._instead_of(chosen, error).run(batch)

    @staticmethod
    def stream_of(data: Any) -> Stream | None:
        """What takes several batches at a time out of data for `run_for_all`; None where only Keras can read them."""
        return Stream(data) if streams(data) else None

    def run_for_all(self, iterator: Iterator, count: int, like: Any) -> tuple[Any, int, Any] | None:
        """The outputs of the step on the next batches of an iterator, joined along the first axis.

        Args:
            iterator: A `tf.data` iterator of dense tensors.
            count: How many, unless the data end, or a batch has other shapes.
            like: A batch of it, which has been run.

        Returns:
            The outputs, how many batches were run, and the next one as an `Optional`, if it has other shapes. None if
            batches like that must be run one by one.
        """
        shapes = shapes_of(like)
        key = self._key_of_tensors(like, shapes)
        trace = self._traced(key)
        if not collectable(trace) or not _knows(trace.spec, iterator.element_spec):
            return None
        self.settled = True
        chosen = self._for_batch(key, like, shapes)
        if not chosen.proven:
            return None
        self.way = chosen.way
        outputs, ran, pending = chosen.feed_for_all(iterator, count, shapes)
        return repack(trace.concrete.structured_outputs, outputs), ran, pending

    def run_rows(self, arrays: Any, size: int, first: int, count: int) -> tuple[Any, int]:
        """The outputs of the step on full batches of rows of tensors, joined along the first axis.

        Args:
            arrays: A batch's structure of dense tensors, with all their rows.
            size: Rows of a batch.
            first: Number of the first row.
            count: How many batches, at most.

        Returns:
            The outputs, and how many batches were run: one, if outputs must not be joined.
        """
        shapes = _cut_shapes(arrays, size)
        key = self._key_of_tensors(arrays, shapes)
        if count == 1 or not collectable(self._traced(key)):
            return self.run_batch(_cut(arrays, first, size)), 1
        self.settled = True
        return self._run_rows(key, shapes, arrays, None, size, first, count, joined=True), count

    def run_rows_for_last(
        self, arrays: Any, size: int, first: int, count: int, order: Any = None, alike: bool = False
    ) -> tuple[Any, int]:
        """Like `run_rows`, for the outputs of the last batch alone.

        Args:
            arrays: A batch's structure of dense tensors, with all their rows.
            size: Rows of a batch.
            first: Number of the first row.
            count: How many batches.
            order: `[rows]` int64: the numbers of the rows, one batch after the other; None for rows as they come.
            alike: Whether all batches of the data have as many rows. Then the graph may know it, as plain Keras' does;
                else one trace is for batches of all sizes.
        """
        self.settled = True
        shapes, specs = _cut_shapes(arrays, size), keras.tree.map_structure(_open_spec, arrays)
        key = self._key(_fixed(specs, shapes) if alike else specs)
        return self._run_rows(key, shapes, arrays, order, size, first, count, joined=False), count

    def _run_rows(self, key, shapes, arrays, order, size, first, count, joined) -> Any:

        def once(executable):
            return lambda: executable.rows(arrays, order, size, first, 1, joined)

        chosen = self._answer(key, shapes) or self._ask(key, _cut(arrays, 0, size), once)
        self.way = chosen.way
        try:
            outputs = chosen.rows(arrays, order, size, first, count, joined)
        except WayFailed as error:
            chosen = self._instead_of(chosen, error)
            outputs = chosen.rows(arrays, order, size, first, count, joined)
        return repack(chosen.trace.concrete.structured_outputs, outputs)

    def reconsider(self) -> None:
        """Ask again about what runs as the plain graph."""
        self._chosen = {name: chosen for name, chosen in self._chosen.items() if chosen.way != "graph"}
        self._main = {key: chosen for key, chosen in self._main.items() if chosen.way != "graph"}

    @staticmethod
    def joined(outputs: list) -> Any:
        """The outputs of several batches, along the first axis."""
        return keras.tree.map_structure(lambda *parts: joined(parts), *outputs)

    gathered = Gathered

    def _run_batches(self, batches: Iterable, count: int) -> tuple[Any, int]:
        outputs, ran = None, 0
        for _, batch in zip(range(count), batches, strict=False):
            outputs, ran = self.run_batch(batch), ran + 1
        if not ran:
            raise StopIteration
        return outputs, ran

    def _key_of(self, iterator) -> str:
        known, key = self._iterator
        if known() is not iterator:
            key = self._key(without_optionals(iterator.element_spec))
            self._iterator = weakref.ref(iterator), key
        return key

    def _key_of_tensors(self, batch: Any, shapes: Shapes) -> str:
        """As Keras traces batches that are tensors: the first shapes as they are, others with the batch axis open."""
        opened = keras.tree.map_structure(_open_spec, batch)
        first = self._first_shapes.setdefault(repr(opened), shapes)
        dense = all(isinstance(x, tf.Tensor | None) for x in keras.tree.flatten(batch))
        return self._key(_fixed(opened, shapes) if dense and first == shapes else opened)

    def _key(self, spec: Any) -> str:
        """Names the trace for batches of that structure, which is made where nothing else runs them."""
        key = repr(spec)
        if key not in self._specs:
            self._opened[key] = repr(keras.tree.map_structure(_opened, spec))
            self._specs[key] = spec
        return key

    def _traced(self, key: str) -> Trace:
        with self._lock:
            if key not in self._traces:
                spec = self._specs[key]
                if self._before is not None:
                    self._before(spec)
                filled = self.filled_step(spec) if self._may_fill(spec) else None
                self._traces[key] = Trace(filled, FilledBatch(spec, ROWS)) if filled else Trace(self._step, spec)
            return self._traces[key]

    def _may_fill(self, spec: Any) -> bool:
        return self.filled_step is not None and fillable(spec)

    def _for_batch(self, key: str, batch: Any, shapes: Shapes) -> Executable:
        answer = self._answer(key, shapes)
        return answer or self._ask(key, batch, lambda executable: functools.partial(executable.run, batch))

    def _choose(self, key: str, pending, iterator) -> Executable:
        batch = without_optionals(pending.get_value())

        def once(executable):
            return lambda: executable.feed(iterator, 1, pending)  # takes nothing from the iterator

        return self._answer(key, shapes_of(batch)) or self._ask(key, batch, once)

    def _answer(self, key: str, shapes: Shapes) -> Executable | None:
        """What was decided for these shapes, unless nothing was, or it may be another thing by now."""
        chosen = self._chosen.get((key, shapes))
        if chosen is None or chosen.way == "graph":
            chosen = self._compiled_for(key, shapes) or chosen
        return None if chosen is not None and chosen.way == "graph" and self._again(shapes) else chosen

    def _stale(self, key: str) -> bool:
        """Whether to ask anew about the usual batches, which run in the plain graph."""
        stale = self._main[key].way == "graph" and self._again(self._usual[key])
        if stale:
            self._chosen.pop((key, self._usual[key]), None)
        return stale

    def _compiled_for(self, key: str, shapes: Shapes) -> Executable | None:
        """What is compiled for these shapes, by a trace that knows more or less than this one of how many rows come."""
        for (other, given), chosen in list(self._chosen.items()):
            if given != shapes or chosen.way == "graph" or self._opened[other] != self._opened[key]:
                continue
            if not self._may_fill(self._specs[key]) or chosen.trace.fills == self._traced(key).fills:
                self._chosen[key, shapes] = chosen
                return chosen
        return None

    def _ask(self, key: str, batch, once: Callable) -> Executable:
        """Have it decided how batches of these shapes run, and make sure that it works."""
        shapes = shapes_of(batch)
        before = self._chosen.get((key, shapes))
        with self._lock:
            now = self._chosen.get((key, shapes))
            if now is not before:  # another thread has had it decided
                return now
            self._chosen[key, shapes] = chosen = self._decided(self._traced(key), key, batch, shapes, once)
            return chosen

    def _decided(self, trace: Trace, key: str, batch, shapes: Shapes, once: Callable) -> Executable:
        self.settled = False
        leaves = tuple(self._leaves(batch))

        def executable(way):
            name = (key, way, None if way == "graph" else shapes)
            if name not in self._made:
                self._made[name] = Executable(trace, way, name[2], lambda seconds: self._tell(leaves, seconds, way))
            return self._made[name]

        def trial(way, repeats, limit):
            return executable(way).trial(once(executable(way)), repeats, limit)

        new_shapes = NewShapes(trace.facts, tuple(trace.blockers), leaves, trial)
        chosen = executable(self._decide(new_shapes))
        answered = dataclasses.replace(new_shapes, trial=None)  # which would keep the iterator
        chosen.instead = lambda error: executable(self._failed(answered, chosen.way, str(error), error.node))
        return chosen

    def _tell(self, leaves, seconds, way):
        self.settled = False
        self._compiled(leaves, seconds, way)

    def _instead_of(self, executable: Executable, error: WayFailed) -> Executable:
        other = executable.instead(error)
        self._chosen = {name: other if chosen is executable else chosen for name, chosen in self._chosen.items()}
        return other

    def _leaves(self, batch) -> list[tuple]:
        """`(name, shape, dtype)` of the tensors; ragged and sparse ones are taken apart."""

        def parts(x):
            inner = tf.nest.flatten(x, expand_composites=True)
            return x if len(inner) == 1 else inner

        batch = keras.tree.map_structure(parts, batch)
        leaves = [x for x in keras.tree.flatten(batch) if x is not None]
        names = self._names(batch)
        return [(name, tuple(x.shape.as_list()), x.dtype.name) for name, x in zip(names, leaves, strict=True)]


def _tensor(x):
    composite = x is None or isinstance(x, tf.__internal__.CompositeTensor)
    return x if composite else tf.convert_to_tensor(x)


def _knows(spec: Any, given: Any) -> bool:
    """Whether a trace for `spec` knows all that is known of the shapes of what is given; else it would be made anew."""
    pairs = zip(leaves_of(spec), leaves_of(without_optionals(given)), strict=True)
    return all(n is not None or m is None for a, b in pairs for n, m in zip(a.shape, b.shape, strict=True))


def _cut(arrays: Any, first: int, size: int) -> Any:
    return keras.tree.map_structure(lambda x: None if x is None else x[first : first + size], arrays)


def _cut_shapes(arrays: Any, size: int) -> Shapes:
    return tuple((size, *x.shape[1:]) for x in leaves_of(arrays))


def _fixed(spec: Any, shapes: Shapes) -> Any:
    """A structure of dense `tf.TypeSpec` with these shapes."""
    return repack(spec, [tf.TensorSpec(shape, x.dtype) for shape, x in zip(shapes, leaves_of(spec), strict=True)])


def _open_spec(x: Any) -> Any:
    return None if x is None else _opened(tf.type_spec_from_value(x))


def _opened(spec: Any) -> Any:
    """A `tf.TypeSpec` but for the number of rows, if it is of a dense tensor that has any."""
    dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if dense else spec
