"""Runs the train, test and predict steps of a model on TensorFlow, each batch in the way that suits it."""

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.execution import Execution
from keras_xla.backend.new_shapes import NewShapes, ShapesRefused, TrialImpossible, WayFailed
from keras_xla.backend.row_numbers import are_numbers
from keras_xla.backend.tensorflow.graphs.graph import leaves_of, repack
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes
from keras_xla.backend.tensorflow.runner.executable import STEPS_AT_ONCE, Executable
from keras_xla.backend.tensorflow.runner.loops import collectable
from keras_xla.backend.tensorflow.runner.predict_outputs import Gathered, concatenated
from keras_xla.backend.tensorflow.runner.sources import Batches, gathered, shapes_of, source_of
from keras_xla.backend.tensorflow.runner.specs import leaves_with_names, opened, spec_of
from keras_xla.backend.tensorflow.runner.trace import Trace, tensors_of
from keras_xla.backend.tensorflow.runner.traces import Traces
from keras_xla.troubleshooting import warn

MOST_ANSWERS = 1024  # that the plain graph runs batches of some shapes, which are kept: ragged data have no end of them
MOST_REFUSED = 8  # batches of a pass whose values a compiled step must not be given, before plain ones run for good


@dataclasses.dataclass
class _Pass:
    """An iterator that batches are taken from."""

    source: Batches
    key: str | None  # of the trace for all batches; None where a batch is traced by its own tensors
    usual: tuple[str, Shapes] = ("", ())  # of the batches that most are like: the key of their trace, and their shapes
    executable: Executable = dataclasses.field(init=False)  # what runs those
    pending: Any = None  # an element of the iterator that goes before what it gives next; None if there is none
    refused: int = 0  # usual batches with values not for the executable, which plain TensorFlow took


class Runner:
    """One kind of step of one model.

    Args:
        step: Takes a batch, returns a structure of tensors: the model's `train_step`, say.
        arrays: By the number that their row numbers carry, objects whose `batch` has all rows as tensors.
        policy: Says how batches run. `decide(new_shapes)` answers with a way; `failed(new_shapes, way, reason, node)`
            with another one when a way that was not tried does not work (see `WayFailed`), or it raises.
            `again(shapes, comes)` tells whether to ask anew about shapes for which the plain graph was the answer, and
            of which a batch `comes`; `known(shapes)` is told of batches for whose shapes an earlier answer holds.
        compiled: `compiled(leaves, seconds, way)` is told of every executable, with the leaves of the batch that it is
            for.
        before: `before(spec)` is called before the step is traced for batches of that structure.
        filled_step: `filled_step(spec)` gives the step to trace for batches of a structure of `tf.TypeSpec`: one that
            takes a `FilledBatch`, so that smaller batches run in the executable of full ones, or None for the usual
            step. Only where XLA runs every batch; else None.
        closed: `closed()` gives a context in which the step is traced with a known number of rows, where plain Keras
            leaves it open.
    """

    gathered = Gathered
    gathers_rows = True  # of arrays in memory, by the row numbers that Keras' pipeline delivers
    first_steps = 1  # to be asked for while nobody knows how long a step takes
    frees_slowly = True  # iterators: see `Session.let_go`

    def __init__(
        self,
        step: Callable,
        arrays: Mapping[int, Any],
        policy: Any,
        compiled: Callable,
        before: Callable | None = None,
        filled_step: Callable | None = None,
        closed: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    ):
        self._arrays, self._policy, self._compiled = arrays, policy, compiled
        self._chosen: dict[tuple[str, Shapes], Executable] = {}
        self._made: dict[tuple, Executable] = {}
        self._passes: weakref.WeakKeyDictionary[tf.data.Iterator, _Pass] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()  # several threads may predict
        self._traces = Traces(step, self._lock, before, filled_step, closed)
        self._decided_and_compiled = 0  # times so far

    def run(self, iterator: Iterator, count: int = 1, every: bool = False) -> Execution:
        """Run the next batches of an iterator: one of `tf.data`, of batches or of row numbers, or any other of batches.

        Those are `count`, unless the data end. With `every`, the outputs of all of them are wanted, joined along the
        first axis, and fewer may be run, as few as one; else those of the last one. Raises `StopIteration` if there is
        no batch left.
        """
        if not isinstance(iterator, tf.data.Iterator):
            return self._run_batches(iterator, count)
        news = self._news
        this = self._pass_of(iterator, every)
        if every and not collectable(this.executable.trace):
            every, count = False, 1
        outputs: Any = None
        ran, ran_by = 0, this.executable
        while ran < count:
            pending, this.pending = this.pending, None
            if pending is None and this.executable.untried:  # if it fails, a batch that it took itself would be lost
                pending = iterator.get_next_as_optional()
            elif pending is None:
                pending = tf.experimental.Optional.empty(iterator.element_spec)
            try:
                made, done, pending = this.executable.feed(this.source, iterator, count - ran, pending, every)
            except WayFailed as error:  # before it ran anything
                this.executable = self._instead_of(this.executable, error, _once(this, iterator, pending))
                this.pending = pending if pending.has_value() else None
                continue
            if done:
                outputs, ran, ran_by = made, ran + done, this.executable
            this.pending = pending if pending.has_value() else None
            if ran == count or this.pending is None or (every and ran):
                break
            made, done, other = self._run_other(this, iterator)
            if done:  # the way of most of them is told
                ran_by = ran_by if ran else other
                outputs, ran = made, ran + done
            if every and ran:
                break
        if not ran:
            raise StopIteration
        outputs = repack(ran_by.trace.concrete.structured_outputs, outputs)
        return Execution(outputs, ran, ran_by.way, self._news == news, calls_python=ran_by.trace.calls_python)

    def run_batch(self, batch: Any) -> Execution:
        """Run one step on a batch of arrays or tensors, or of row numbers."""
        news = self._news
        batch = gathered(tensors_of(batch), self._arrays)
        shapes = shapes_of(batch)
        key = self._traces.key(keras.tree.map_structure(spec_of, batch))

        def once(executable):
            def run():
                executable.run(batch)
                return 1

            return run

        chosen = self._answer(key, shapes) or self._ask(key, batch, once)
        if not chosen.holds(batch):
            chosen = self._executable(key, "graph", (), shapes)
        try:
            outputs, way = chosen.run(batch), chosen.way
        except WayFailed as error:
            chosen = self._instead_of(chosen, error, once)
            outputs, way = chosen.run(batch), chosen.way
        return Execution(outputs, 1, way, self._news == news, calls_python=chosen.trace.calls_python)

    def run_rows(self, arrays: Any, size: int, first: int, count: int, known: bool, every: bool) -> Execution:
        """Run `count` batches of `size` rows of arrays in their order, from row `first` on; or fewer, as few as one.

        `arrays` are dense tensors in the structure of a batch. `known` tells whether the trace knows how many rows a
        batch has, as plain Keras' does; `every` whether the outputs of all batches are wanted, joined along the first
        axis, or those of the last.
        """
        news, tensors = self._news, leaves_of(arrays)
        batch = repack(arrays, [tf.TensorSpec([size, *x.shape[1:]], x.dtype) for x in tensors])
        key, shapes = self._traces.key(batch if known else keras.tree.map_structure(opened, batch)), shapes_of(batch)

        several = first + STEPS_AT_ONCE * size <= min(x.shape[0] for x in tensors)

        def once(executable):
            at_once = executable.at_once if several else 1
            return lambda: executable.rows(tensors, size, first, at_once, every and collectable(executable.trace))[1]

        chosen = self._answer(key, shapes) or self._ask(key, batch, once)
        while True:
            joined = every and collectable(chosen.trace)
            try:
                outputs, ran = chosen.rows(tensors, size, first, 1 if every and not joined else count, joined)
            except WayFailed as error:  # before it ran anything
                chosen = self._instead_of(chosen, error, once)
                continue
            if ran:
                break
            chosen, count = self._executable(key, "graph", (), shapes), 1  # it says what is wrong with the values
        outputs = repack(chosen.trace.concrete.structured_outputs, outputs)
        return Execution(outputs, ran, chosen.way, self._news == news, calls_python=chosen.trace.calls_python)

    @property
    def _news(self) -> int:
        """How many decisions, traces and compilations there were so far."""
        return self._decided_and_compiled + self._traces.made

    @staticmethod
    def joined(outputs: list) -> Any:
        """The outputs of several batches, along the first axis; raises where Keras does, as other axes differ."""
        return keras.tree.map_structure(lambda *parts: concatenated(parts), *outputs)

    def _run_batches(self, batches: Iterable, count: int) -> Execution:
        made = None
        for ran, batch in zip(range(1, count + 1), batches, strict=False):
            one = self.run_batch(batch)
            made = dataclasses.replace(one, batches=ran, settled=one.settled and (made is None or made.settled))
        if made is None:
            raise StopIteration
        return made

    def _pass_of(self, iterator: tf.data.Iterator, every: bool) -> _Pass:
        """What is known of an iterator; of a new one, or where the usual batches are worth another question, anew.

        Raises `StopIteration` if there is no batch left.
        """
        this = self._passes.get(iterator)
        if this is not None and not (this.executable.way == "graph" and self._policy.again(this.usual[1], False)):
            return this
        pending = this.pending if this and this.pending is not None else iterator.get_next_as_optional()
        if not pending.has_value():
            if this is None and not are_numbers(iterator.element_spec):
                # Plain Keras' step is traced, and with it made what the model lacks, before it asks for a batch.
                self._traces.of(self._traces.key(Batches(iterator.element_spec).spec))
            raise StopIteration
        if this is None:
            source = source_of(iterator.element_spec, pending.get_value(), self._arrays)
            # Where all outputs are wanted, plain Keras traces by the tensors of a batch, whose sizes are known.
            this = _Pass(source, None if every else self._traces.key(source.spec))
        else:
            with self._lock:
                self._chosen.pop(this.usual, None)
        this.pending = pending
        this.executable, this.usual = self._choose(this, iterator)
        with self._lock:
            self._passes[iterator] = this
        return this

    def _run_other(self, this: _Pass, iterator) -> tuple[list, int, Executable]:
        """Run the pending batch, which is not for the usual executable; or see that it becomes the usual one."""
        chosen, kind = self._choose(this, iterator)
        if kind == this.usual and chosen is this.executable:  # its values are not: plainly, it says why
            chosen = self._executable(kind[0], "graph", (), kind[1])
            this.refused += 1
            if this.refused > MOST_REFUSED:  # nothing is wrong with them
                this.executable = self._choice(*kind, chosen)
        elif chosen.way != "graph":
            this.executable, this.usual = chosen, kind
            return [], 0, chosen
        pending, this.pending = this.pending, None
        outputs, done, _ = chosen.feed(this.source, iterator, 1, pending)  # this one only: others may be usual again
        return outputs, done, chosen

    def _choose(self, this: _Pass, iterator) -> tuple[Executable, tuple[str, Shapes]]:
        """What the pending batch shall be run by; the key of the trace for it, and its shapes."""
        batch = this.source.example(this.pending.get_value())
        key = this.key or self._traces.key(keras.tree.map_structure(spec_of, batch))
        shapes, once = shapes_of(batch), _once(this, iterator, this.pending)
        return self._answer(key, shapes) or self._ask(key, batch, once), (key, shapes)

    def _answer(self, key: str, shapes: Shapes) -> Executable | None:
        """What was decided for these shapes, unless nothing was, or it may be another thing by now."""
        chosen = self._chosen.get((key, shapes))
        if chosen is None or (chosen.way == "graph" and self._policy.again(shapes, True)):
            return None
        self._policy.known(shapes)
        return chosen

    def _ask(self, key: str, batch, once: Callable) -> Executable:
        """Have it decided how batches of these shapes run, and make sure that it works."""
        shapes = shapes_of(batch)
        before = self._chosen.get((key, shapes))
        with self._lock:
            now = self._chosen.get((key, shapes))
            if now is not None and now is not before:  # another thread has had it decided
                return now
            return self._choice(key, shapes, self._decided(self._traces.of(key), key, batch, once))

    def _choice(self, key: str, shapes: Shapes, executable: Executable) -> Executable:
        """Keep what batches of these shapes run by. Of many answers alike, the oldest is asked for anew."""
        with self._lock:
            self._chosen.pop((key, shapes), None)  # the newest is the last one
            self._chosen[key, shapes] = executable
            if executable.way != "graph":
                # Other traces of such batches were judged before it was known how many come: they are asked anew.
                plain = [name for name, x in self._chosen.items() if name[1] == shapes and x.way == "graph"]
                for name in plain:
                    del self._chosen[name]
                return executable
            plain = [name for name, chosen in self._chosen.items() if chosen.way == "graph"]
            if len(plain) > MOST_ANSWERS:
                self._chosen.pop(plain[0])
        return executable

    def _decided(self, trace: Trace, key: str, batch, once: Callable) -> Executable:
        self._decided_and_compiled += 1
        leaves, shapes = leaves_with_names(batch), shapes_of(batch)

        def executable(way):
            return self._executable(key, way, leaves, shapes)

        def trial(way, repeats, limit):
            return executable(way).trial(once(executable(way)), repeats, limit)

        new_shapes = NewShapes(trace.facts, tuple(trace.blockers), leaves, trial)
        chosen = executable(self._policy.decide(new_shapes))
        answered = dataclasses.replace(new_shapes, trial=None)  # which would keep the iterator

        def instead(error, once):
            graph = executable("graph")
            if isinstance(error, ShapesRefused):
                if not error.lasting:  # in a trial, the policy notes it
                    warn(f"Batches of these shapes run without XLA: {error}.")
                return graph
            if chosen.stops:  # what failed may be a check in the step, and not XLA: then the plain graph raises it
                with contextlib.suppress(TrialImpossible), graph.on_copies():
                    once(graph)()
            return executable(self._policy.failed(answered, chosen.way, str(error), error.node))

        chosen.instead = instead
        return chosen

    def _executable(self, key: str, way: str, leaves: tuple, shapes: Shapes) -> Executable:
        """One way to run batches of these leaves and shapes; the plain graph is one for all shapes."""
        name = key, way, None if way == "graph" else shapes
        if name not in self._made:
            told, trace = functools.partial(self._tell, leaves, way), self._traces.of(key)
            if trace.fills and way == "graph":  # nothing is filled up for it
                trace = self._traces.unfilled(key)
            self._made[name] = Executable(trace, way, name[2], told)
        return self._made[name]

    def _tell(self, leaves: tuple, way: str, seconds: float) -> None:
        self._decided_and_compiled += 1
        self._compiled(leaves, seconds, way)

    def _instead_of(self, executable: Executable, error: WayFailed, once: Callable) -> Executable:
        other = executable.instead(error, once)
        for name, chosen in list(self._chosen.items()):  # others may decide meanwhile
            if chosen is executable:
                self._choice(*name, other)
        return other


def _once(this: _Pass, iterator, pending: Any) -> Callable:
    """`once(executable)()` runs the pending batch by it, takes nothing from the iterator, and tells how many ran."""
    return lambda executable: lambda: executable.feed(this.source, iterator, 1, pending)[1]
