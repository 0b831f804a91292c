"""Runs the train, test and predict steps of a model under `MirroredStrategy` or `MultiWorkerMirroredStrategy`."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.execution import Execution
from keras_xla.backend.new_shapes import NewShapes, WayFailed
from keras_xla.backend.signature import Leaf
from keras_xla.backend.tensorflow.distribute.replica_step import Replicas, is_multi_worker, local_batches
from keras_xla.backend.tensorflow.graphs.graph import leaves_of
from keras_xla.backend.tensorflow.runner.executable import way_may_fail
from keras_xla.backend.tensorflow.runner.runner import Runner
from keras_xla.backend.tensorflow.runner.sources import shapes_of
from keras_xla.backend.tensorflow.runner.specs import leaves_with_names
from keras_xla.backend.tensorflow.runner.trace import tensors_of, without_optionals
from keras_xla.backend.tensorflow.runner.trial import timed_runs


def is_mirrored(model) -> bool:
    """Whether the model's variables are mirrored, each replica having a copy."""
    kinds = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    return isinstance(model.distribute_strategy, kinds)


class ReplicasRunner:
    """One kind of step of one model; see `Runner`.

    Workers must do the same things together. What they may differ in is only how each runs the first part of its
    replicas (see `replica_step`), and so each of them decides for itself, for the shapes that come first.

    Args:
        model: Under a mirrored strategy, with Keras' own step.
        kind: `"train"`, `"test"` or `"predict"`.
        strict: Whether everything has to be compiled.
        names: `names(batch)` names the tensors of a batch.
        decide: Answers a `NewShapes` with the way to run batches of such shapes. Trials leave nothing behind.
        saw: `saw([(way, leaves), ...], seconds, compiled=True)` is told of the executables that one run compiled.
        failed: As `Runner` has it.
        again: As `Runner` has it.
        note: `note(new_shapes, reason)` is told of shapes for which the plain graph is taken without asking.
        plainly: `plainly(reason, fix)` gives Keras' own function, where the step cannot be divided; may raise.
    """

    joined = staticmethod(Runner.joined)

    def __init__(
        self,
        model: keras.Model,
        kind: str,
        strict: bool,
        names: Callable,
        decide: Callable,
        saw: Callable,
        failed: Callable,
        again: Callable,
        note: Callable,
        plainly: Callable,
    ):
        self._model, self._kind, self._strict, self._names = model, kind, strict, names
        self._decide, self._saw, self._failed, self._again = decide, saw, failed, again
        self._note, self._plainly = note, plainly
        self._one_process = not is_multi_worker(model)
        self._replicas: dict[str, Replicas] = {}
        self._ways: dict[tuple[str, tuple], str] = {}
        self._current: dict[str, tuple[tuple, str]] = {}
        self._functions: dict[tuple, Callable] = {}
        self._seen: set[tuple] = set()
        self._plain: Callable | None = None
        self._news = 0  # decisions and traces so far

    def run(self, iterator: Iterator, count: int = 1) -> Execution:
        """Train or test on the next batches, `count` unless the data end; see `Runner.run`."""
        news, outputs, ran, spec = self._news, None, 0, None
        if isinstance(iterator, tf.distribute.DistributedIterator):
            spec = without_optionals(iterator.element_spec)
            self._replicas_of(spec)
        if self._plain is not None:
            return self._plainly_run(iterator, count)
        for _ in range(count):
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            made = self._run(batch, spec)
            outputs, ran = made.outputs, ran + 1
        if not ran:
            raise StopIteration
        return Execution(outputs, ran, made.way, self._news == news)

    def run_batch(self, batch: Any) -> Execution:
        """Run one step on a batch of tensors, or of such values for each replica."""
        return self._run(batch, None)

    def reconsider(self) -> None:
        """Ask again about what runs as the plain graph; not among several workers, which could not do so together."""
        if self._one_process:
            self._ways = {key: way for key, way in self._ways.items() if way != "graph"}

    def _run(self, batch: Any, spec: Any) -> Execution:
        news = self._news
        batch = tensors_of(batch)
        spec = keras.tree.map_structure(_open, batch) if spec is None else spec
        replicas = self._replicas_of(spec)
        if replicas is None:
            return self._plainly_run([batch], 1)
        local, key = local_batches(self._model, batch), repr(spec)
        shapes = tuple(shapes_of(each) for each in local)
        way = self._ways.get((key, shapes), "")
        if not way or (way == "graph" and self._one_process and self._again(shapes[0])):
            way = self._ways[key, shapes] = self._ask(replicas, key, shapes, local, batch)
        outputs = self._function(replicas, key, shapes, way)(*leaves_of(batch))
        return Execution(outputs, 1, way, self._news == news)

    def _replicas_of(self, spec: Any) -> Replicas | None:
        """The steps for such batches; None if Keras' own function has to run them."""
        key = repr(spec)
        if self._plain is None and key not in self._replicas:
            self._news += 1
            if not self._model.built:
                fix = "call build, or fit or evaluate it first"
                self._plain = self._plainly("the model is not built yet", fix)
                return None
            replicas = Replicas(self._model, self._kind, spec)
            if replicas.writes:
                fix = "keep state in keras.Variable instead of tf.Variable"
                self._plain = self._plainly(f"{replicas.writes} changes a variable that is not Keras'", fix)
                return None
            self._replicas[key] = replicas
        return self._replicas.get(key)

    def _plainly_run(self, batches: Iterable, count: int) -> Execution:
        return Execution(self._plain(batches), count, "graph", settled=False)

    def _function(self, replicas: Replicas, key: str, shapes: tuple, way: str) -> Callable:
        """The whole step, built for the usual shapes, where these can be run by it, too."""
        if key not in self._current or (self._one_process and way != "graph"):
            self._current[key] = self._known(replicas, shapes), way
        usual, way = self._current[key]
        if (key, usual, way) not in self._functions:
            self._news += 1
            others = "graph" if not self._strict else None if self._one_process else way
            self._functions[key, usual, way] = replicas.whole(way, usual, others)
        return self._functions[key, usual, way]

    def _known(self, replicas: Replicas, shapes: tuple) -> tuple:
        """The shapes to compile for; None where that is left to the moment of the compilation, for any."""
        return tuple(None for _ in shapes) if self._strict and not replicas.divided else shapes

    def _ask(self, replicas: Replicas, key: str, shapes: tuple, local: list, batch: Any) -> str:
        """Have it decided how batches of these shapes run, and make sure that it works."""
        self._news += 1
        trace, flat = replicas.parts[0].trace, leaves_of(batch)
        leaves = leaves_with_names(local[0], self._names)
        mark = f"{trace.facts.fingerprint} on {self._model.distribute_strategy.num_replicas_in_sync} replicas"
        facts = dataclasses.replace(trace.facts, fingerprint=mark)

        def run(way):
            known = self._known(replicas, shapes)
            if self._strict and not self._one_process and key in self._current:
                usual, _ = self._current[key]
                known = tuple(shape if shape == u else None for shape, u in zip(known, usual, strict=True))
            self._try(lambda: replicas.alone(way, known), key, way, shapes, local, flat)

        def trial(way, repeats, limit):
            return timed_runs(lambda: run(way), repeats, limit)

        new_shapes = NewShapes(facts, tuple(trace.blockers), leaves, trial)
        if key in self._current and not self._one_process and not self._strict:
            self._note(new_shapes, "other shapes than the first batch: several workers must keep in step")
            return "graph"
        way = self._decide(new_shapes)
        if way != "graph":
            try:
                run(way)
            except WayFailed as error:
                way = self._failed(dataclasses.replace(new_shapes, trial=None), way, str(error), error.node)
        return way

    def _try(self, alone: Callable, key: str, way: str, shapes: tuple, local: list, flat: list) -> None:
        """Run the first part by itself, as `alone()` gives it, which compiles it; raises `WayFailed` if that fails.

        `shapes` and `local` are those of each replica's batch and these batches, `flat` the tensors of the whole one,
        and `key` is of its structure.
        """
        if way == "graph":
            alone()(*flat)
            return
        start = time.perf_counter()
        with way_may_fail():
            alone()(*flat)
        here = {replica: (key, way, replica, shape) for replica, shape in enumerate(shapes)}
        new = [replica for replica, executable in here.items() if executable not in self._seen]
        self._seen.update(here.values())
        if new:
            events = [
                (way, (*leaves_with_names(local[replica], self._names), Leaf("replica", None, "", replica)))
                for replica in new
            ]
            self._saw(events, time.perf_counter() - start, compiled=True)


def _open(x: Any) -> Any:
    """The spec of a tensor, or of one for each replica, with the batch axis open."""
    if x is None:
        return None
    if isinstance(x, tf.distribute.DistributedValues):
        return type(tf.type_spec_from_value(x))(*map(_open, x.values))
    spec = tf.type_spec_from_value(x)
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec
