"""A step under `tf.distribute`, in two parts: one that XLA can compile in each replica, and the rest, in the graph.

The first part is the forward pass, the loss and its gradients. It changes nothing: what Keras assigns to variables
(moving statistics, states of random seeds, trackers of losses) comes out as values. So it can be run for a trial and
forgotten. The second part assigns those values, sums the gradients over the replicas, which no executable can, and
updates weights and metrics. Together they are `train_step`, `test_step` or `predict_step` of `keras.Model`.
"""

import contextlib
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_xla.backend.tensorflow.graphs.graph import leaves_of, repack
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes
from keras_xla.backend.tensorflow.graphs.operations import operations
from keras_xla.backend.tensorflow.runner.trace import Trace, without_optionals
from keras_xla.backend.tensorflow.runner.ways import make
from keras_xla.private.keras import loss_of, loss_tracker, mask_of, set_mask, step_function, takes_training
from keras_xla.private.keras import symbolic_build as keras_build
from keras_xla.private.tensorflow import spec_of_replica

_WRITES = ("Assign", "ResourceApply", "ResourceScatter")
_unconverted = tf.autograph.experimental.do_not_convert


def is_multi_worker(model: Any) -> bool:
    """Whether the replicas are those of several processes."""
    return isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy)


def symbolic_build(model: keras.Model) -> Callable | None:
    """What Keras' `_maybe_symbolic_build` does, for several workers; None where Keras' own works.

    Keras asks for the mean of a batch over all replicas, to look at its shapes only, and among several workers that
    fails: https://github.com/keras-team/keras/issues/20585.
    """
    if not is_multi_worker(model):
        return None

    def build(iterator=None, data_batch=None):
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(lambda x: _of_replica(x, 0), next(batches))
        with model.distribute_strategy.scope():
            keras_build(model, data_batch)

    return build


def local_batches(model: keras.Model, batch: Any) -> list:
    """The batches of the replicas of this process."""
    count = len(model.distribute_strategy.extended.worker_devices)
    return [keras.tree.map_structure(lambda x, i=i: _of_replica(x, i), batch) for i in range(count)]


def _of_replica(x: Any, replica: int) -> Any:
    return x.values[replica] if isinstance(x, tf.distribute.DistributedValues) else x


class Part:
    """The step of one replica of a compiled and built Keras 3 model; to be made and run in its context.

    `spec` is the structure of `tf.TypeSpec` of the replica's batch; `trace` is the first part.
    """

    def __init__(self, model: keras.Model, kind: str, spec: Any):
        self._model, self._kind = model, kind
        self._changed: list[keras.Variable] = []
        self._compiled: dict[tuple, Callable] = {}
        self.trace = Trace(self._forward, spec)

    def graph(self, flat: Sequence) -> list:
        """The flat results of the first part, from TensorFlow's own kernels."""
        return leaves_of(self.trace.concrete(repack(self.trace.spec, flat)))

    def compiled(self, way: str, shapes: Shapes | None, flat: Sequence) -> list:
        """The same from one executable; see `ways.make`.

        Wherever it is called from, it is the same function, so that XLA compiles it once for the same shapes.
        """
        if (way, shapes) not in self._compiled:
            step, tensors = make(self.trace, way, shapes), leaves_of(self.trace.spec)
            sizes = shapes or [x.shape for x in tensors]
            specs = [tf.TensorSpec(shape, x.dtype) for shape, x in zip(sizes, tensors, strict=True)]

            def run(*flat):
                return leaves_of(step(repack(self.trace.spec, flat)))

            self._compiled[way, shapes] = tf.function(run, autograph=False).get_concrete_function(*specs)
        return self._compiled[way, shapes](*(map(_all_of, flat, shapes) if shapes else flat))

    def rest(self, batch: Any, results: Sequence) -> Any:
        """The second part, for the flat results of the first: what Keras' step returns."""
        model, made = self._model, repack(self.trace.concrete.structured_outputs, results)
        for variable, value in zip(self._changed, made["changes"], strict=True):
            variable.assign(value)
        predictions = made["predictions"]
        for x, mask in zip(keras.tree.flatten(predictions), made["masks"], strict=True):
            if mask is not None:
                set_mask(x, mask)  # metrics look at it
        if self._kind == "predict":
            return predictions
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        loss, replicas = made["loss"], tf.distribute.get_strategy().num_replicas_in_sync
        rows = tf.shape(next(leaf for leaf in keras.tree.flatten(x) if leaf is not None))[0]
        loss_tracker(model).update_state(
            keras.ops.multiply(loss, keras.ops.cast(replicas, loss.dtype)) if replicas > 1 else loss, sample_weight=rows
        )
        if self._kind == "train":
            if model.trainable_weights:
                model.optimizer.apply_gradients(zip(made["gradients"], model.trainable_weights, strict=True))
            else:
                warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return model.compute_metrics(x, y, predictions, sample_weight=weights)

    def _forward(self, batch: Any) -> dict[str, Any]:
        model, training = self._model, self._kind == "train"
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        with _Recorder(model) as recorder, tf.GradientTape() if training else contextlib.nullcontext() as tape:
            predictions = model(x, training=training) if takes_training(model) else model(x)
            masks = [mask_of(each) for each in keras.tree.flatten(predictions)]
            made = {"predictions": predictions, "masks": masks}
            if self._kind != "predict":
                made["loss"] = scaled = loss_of(model, x, y, predictions, weights, training)
            if training and model.optimizer is not None:
                scaled = model.optimizer.scale_loss(scaled)
        if training:
            made["gradients"] = tape.gradient(scaled, model.trainable_weights) if model.trainable_weights else []
        self._changed = [variable for variable, _ in recorder.changes.values()]
        made["changes"] = [value for _, value in recorder.changes.values()]
        return made


def _all_of(x: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """The tensor with its shape known.

    Cut out of it: of `tf.ensure_shape` TensorFlow's optimizer concludes that the tensor has that shape everywhere, in
    the other branch of a condition, too.
    """
    return tf.slice(x, [0] * len(shape), shape) if shape else x


class _Recorder(keras.StatelessScope):
    """Keeps what is assigned to variables from them: `changes` are in the order of the first one of each variable."""

    def __init__(self, model: keras.Model):
        regularized = [v for v in model.trainable_weights if v.regularizer is not None]  # read through the scope only
        super().__init__([(v, v.value) for v in regularized], collect_losses=True)
        self.changes: dict[int, tuple[keras.Variable, Any]] = {}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        super().add_update(update)
        self.changes[id(update[0])] = update


class Replicas:
    """The steps of all replicas of this process under a mirrored strategy, for batches of one structure.

    `spec` is the structure of `tf.TypeSpec` of what `strategy.run` shall take; `parts` has the step of each replica.
    """

    def __init__(self, model: keras.Model, kind: str, spec: Any):
        self._model, self._kind, self.spec = model, kind, spec
        self._strategy = model.distribute_strategy
        self.parts: dict[int, Part] = {}
        self._alone: dict[tuple, Callable] = {}

        @_unconverted
        def trace():
            here = self._here()
            self.parts[here] = Part(model, kind, keras.tree.map_structure(lambda x: spec_of_replica(x, here), spec))

        def in_each():
            self._strategy.run(trace)

        tf.function(in_each, autograph=False).get_concrete_function()  # a place to trace in: it is never run

    @functools.cached_property
    def writes(self) -> str:
        """An operation of the first part that changes a variable behind Keras' back; empty if none does."""
        kinds = (op.type for op in operations(self.parts[0].trace.concrete.graph))
        return next((kind for kind in kinds if kind.startswith(_WRITES)), "")

    @property
    def divided(self) -> bool:
        """Whether something runs in front of the executable, which needs to know all shapes for that."""
        facts = self.parts[0].trace.facts
        return bool(facts.random or facts.blocked)

    def alone(self, way: str, shapes: tuple) -> Callable:
        """The first part by itself, as a function of flat tensors: nothing is left of it.

        `shapes` are those of each replica's batch, or None for any.
        """
        if (way, shapes) not in self._alone:

            @_unconverted
            def first(data):
                here, flat = self._here(), leaves_of(without_optionals(data))
                part = self.parts[here]
                return part.graph(flat) if way == "graph" else part.compiled(way, shapes[here], flat)

            def run(*flat):
                return self._strategy.run(first, args=(repack(self.spec, flat),))

            self._alone[way, shapes] = self._traced(run)
        return self._alone[way, shapes]

    def whole(self, way: str, shapes: tuple, others: str | None) -> Callable:
        """The whole step as a function of flat tensors; it gives what Keras' function gives.

        Whatever the way, all that workers do together is the same, and in the same order. So one may run through XLA
        what another one does not. `shapes` are those of each replica's batch, or None for any; `others` is the way for
        batches of other shapes, None if it will not be called with any.
        """

        @_unconverted
        def step(data):
            here, batch = self._here(), without_optionals(data)
            part, flat = self.parts[here], leaves_of(batch)
            outputs = part.rest(batch, self._first(part, flat, way, shapes[here], others))
            if self._kind == "predict" or not is_multi_worker(self._model):
                return outputs
            # Keras takes the mean of these over workers along axis 0, which scalars do not have.
            return keras.tree.map_structure(lambda x: tf.expand_dims(x, 0), outputs)

        # Runs the step in all replicas for the one batch in a list, and brings the outputs together as Keras does.
        function = step_function(_StandIn(self._model, self._kind, step), self._kind, keras.Model)
        return self._traced(lambda *flat: function([repack(self.spec, flat)]))

    def _traced(self, function: Callable) -> Callable:
        """For tensors of any sizes that the spec allows: workers must not trace again but together."""
        return tf.function(function, autograph=False).get_concrete_function(*leaves_of(self.spec))

    def _first(self, part: Part, flat: Sequence, way: str, shapes: Shapes | None, others: str | None) -> list:
        if way == "graph":
            return part.graph(flat)
        if shapes is None or others is None:
            return part.compiled(way, shapes, flat)
        fits = [tf.reduce_all(tf.equal(tf.shape(x), shape)) for x, shape in zip(flat, shapes, strict=True)]
        results = tf.cond(
            tf.reduce_all(tf.stack(fits)),
            lambda: part.compiled(way, shapes, flat),
            lambda: part.graph(flat) if others == "graph" else part.compiled(others, None, flat),
        )
        for x, known in zip(results, leaves_of(part.trace.concrete.structured_outputs), strict=True):
            x.set_shape(known.shape)
        return results

    def _here(self) -> int:
        """The number of the replica, among those of this process, in whose context this is called."""
        number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return int(number) % len(self._strategy.extended.worker_devices)


class _StandIn:
    """Takes the model's place where Keras makes a function of a step: eager, of one step, with this step."""

    run_eagerly, jit_compile, steps_per_execution = True, False, 1

    def __init__(self, model: keras.Model, kind: str, step: Callable):
        self._model = model
        setattr(self, f"{kind}_step", step)
        setattr(self, f"{kind}_function", None)

    def __getattr__(self, name: str) -> Any:
        found = getattr(type(self._model), name, None)
        return types.MethodType(found, self) if inspect.isfunction(found) else getattr(self._model, name)
