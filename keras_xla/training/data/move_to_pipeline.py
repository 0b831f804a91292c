"""Leading layers that XLA cannot compile, moved out of a model into the input pipeline."""

import inspect
from collections.abc import Sequence
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend.keras2 import require_model
from keras_xla.diagnosis.advice import fix_for_layer
from keras_xla.diagnosis.explain import explain, layer_blockers
from keras_xla.private.keras.graphs import is_graph, maker_of, nodes_of
from keras_xla.private.keras.layers import flat_layers, is_of_keras, runs_in_tf_data
from keras_xla.private.keras.masks import mask_of
from keras_xla.training.data.layer_graph import blocked, ends_of, inlined, match, run
from keras_xla.troubleshooting import explained

WHO = "keras_xla.move_to_pipeline"


@explained
def move_to_pipeline(model: keras.Model) -> tuple["Preprocess", keras.Model]:
    """Split a model into leading layers for the `tf.data` pipeline and the rest, which XLA compiles as a whole.

    It is for a functional or `Sequential` model that begins with what XLA cannot compile: `StringLookup`,
    `TextVectorization`, `Hashing`, `HashedCrossing`, `IntegerLookup`, random image layers, operations on strings;
    whatever `keras_xla.explain` finds. In the pipeline they work on the next batches while the model trains on this
    one, and `keras_xla.compile(rest, jit_compile=True)` compiles all that is left. On the JAX backend, which has no
    strings, this is how such a model trains.

    The model itself stays as it is and shares its layers with both parts: train `rest`, then save or serve the model,
    which takes strings. Call this before `compile`: `rest` comes uncompiled.

    Args:
        model: A functional `keras.Model`, also of a subclass with its own `train_step`, or a built `Sequential` one.
            Other models inside are taken apart where needed.

    Returns:
        A pair `(preprocess, rest)` of a `Preprocess` and a `keras.Model`. `dataset.map(preprocess)` takes batches `x`,
        `(x, y)` or `(x, y, sample_weight)` and gives them with the `x` that `rest` wants: a tensor where that is one,
        else a dict. Random layers (augmentation) act in training only: with those, `fit` needs
        `dataset.map(preprocess.for_training)`, `evaluate` and `predict` need `dataset.map(preprocess.for_inference)`,
        and `preprocess` alone is an error. Where nothing has to be moved, batches stay as they are, and `rest` is the
        model.

    Raises:
        ValueError: A layer that XLA cannot compile does not lead: it has weights, or needs the result of a layer that
            has. Or the model is subclassed or not built, returns strings, or nothing would be left of it.
        TypeError: `model` is not a Keras model.

    Example:
    ```python
    city = keras.Input((1,), dtype="string", name="city")
    ids = keras.layers.StringLookup(vocabulary=["Rome", "Oslo"])(city)
    model = keras.Model(city, keras.layers.Flatten()(keras.layers.Embedding(3, 4)(ids)))

    preprocess, rest = keras_xla.move_to_pipeline(model)
    print(keras_xla.explain(rest))
    print(rest.predict(preprocess(np.array([["Oslo"], ["Rome"]])), verbose=0).shape)
    ```
    """
    require_model(WHO, model)
    if not is_graph(model):
        raise ValueError(
            f"{WHO} received {model.name!r} ({type(model).__name__}), which has no graph of layers: it is subclassed, "
            "has a call of its own, or is not built. It expects a functional model or a Sequential one that is built "
            "(begin it with keras.Input). Call the layers in dataset.map by hand otherwise."
        )
    explanation = explain(model)
    probe = bool(set(explanation.blockers) - set(layer_blockers(model)))
    inputs, outputs = ends_of(model)
    flat_inputs = keras.tree.flatten(inputs)
    if not any(blocked(node, probe) for node in nodes_of(flat_inputs, keras.tree.flatten(outputs))):
        return Preprocess(model.name, inputs, [], []), model
    flat_outputs, taken_apart = inlined(flat_inputs, keras.tree.flatten(outputs), lambda node: blocked(node, probe))
    nodes = nodes_of(flat_inputs, flat_outputs)
    front = _upstream(nodes, [node for node in nodes if blocked(node, probe)], model)
    behind = [node for node in nodes if node not in front]
    crossing = _crossing(model, flat_inputs, front, behind, flat_outputs)
    fed = {id(x): new for x, new in zip(crossing, _inputs_of(crossing, flat_inputs, front, behind), strict=True)}
    preprocess = Preprocess(model.name, inputs, front, [(fed[id(x)].name, x) for x in crossing])
    if isinstance(model, keras.Sequential) and not taken_apart:
        moved = [node.operation for node in front]
        layers = [layer for layer in model.layers if layer not in moved]
        return preprocess, _made(model, [*fed.values(), *layers])
    run(behind, fed)
    outputs = keras.tree.pack_sequence_as(outputs, [fed[id(x)] for x in flat_outputs])
    given: Any = [fed[id(x)] for x in crossing]
    given = given[0] if len(given) == 1 else {x.name: x for x in given}
    return preprocess, _made(model, given, outputs)


@explained
class Preprocess:
    """Runs the layers that `keras_xla.move_to_pipeline` moved; for `dataset.map`, or for batches at hand.

    Attributes:
        layers: The layers and operations that were moved, first to last; empty if there was nothing to move.
    """

    def __init__(self, model: str, inputs: Any, nodes: Sequence, crossing: Sequence[tuple[str, Any]]):
        self.layers = tuple(dict.fromkeys(node.operation for node in nodes))
        self._model, self._inputs, self._nodes, self._crossing = model, inputs, list(nodes), list(crossing)
        self._random = [layer.name for operation in self.layers for layer in _acting_in_training(operation)]

    def __repr__(self):
        return f"<Preprocess of {self._model!r}: {', '.join(op.name for op in self.layers) or 'nothing to move'}>"

    def for_training(self, x: Any, *targets: Any) -> Any:
        """Run the layers as in `fit`, where random layers act; for `dataset.map`.

        Args:
            x: The inputs of the model: arrays or tensors, in its structure of inputs.
            *targets: `y`, or `y` and `sample_weight`, which stay as they are.

        Returns:
            The inputs of the rest, alone or in a tuple with the targets.
        """
        return self(x, *targets, training=True)

    def for_inference(self, x: Any, *targets: Any) -> Any:
        """Run the layers as in `evaluate` and `predict`, where random layers do nothing; for `dataset.map`.

        Args:
            x: The inputs of the model: arrays or tensors, in its structure of inputs.
            *targets: `y`, or `y` and `sample_weight`, which stay as they are.

        Returns:
            The inputs of the rest, alone or in a tuple with the targets.
        """
        return self(x, *targets, training=False)

    def __call__(self, x: Any, *targets: Any, training: bool | None = None) -> Any:
        """Run the layers on a batch.

        Args:
            x: The inputs of the model: arrays or tensors, in its structure of inputs.
            *targets: `y`, or `y` and `sample_weight`, which stay as they are.
            training: Whether random layers act (bool). It is needed if there are any.

        Returns:
            The inputs of the rest, a tensor or a dict of tensors by name, alone or in a tuple with the targets.

        Raises:
            ValueError: There are layers that act in training only, and `training` is None. Or `x` has another structure
                or other ranks than the inputs of the model. Or a mask would have to travel through the pipeline.
        """
        if training is None and self._random:
            raise ValueError(
                f"preprocess of {self._model!r} has layers that act in training only: {', '.join(self._random)}. Map "
                "preprocess.for_training over the data of fit, and preprocess.for_inference over those of evaluate, "
                "predict and validation_data."
            )
        if self._nodes:
            x = self._run(x, training)
        return (x, *targets) if targets else x

    def _run(self, x: Any, training: bool | None) -> Any:
        flat = keras.tree.flatten(self._inputs)
        values = {id(ref): value for ref, value in zip(flat, match(WHO, self._inputs, x), strict=True)}
        run(self._nodes, values, training)
        made = {name: _checked(name, values[id(ref)], ref) for name, ref in self._crossing}
        return made if len(made) > 1 else next(iter(made.values()))


def _checked(name: str, x: Any, ref: keras.KerasTensor) -> Any:
    if mask_of(x) is not None:
        raise ValueError(
            f"{WHO}: {name!r} carries a Keras mask, which cannot travel through a pipeline. Put the layer that masks "
            "behind the layers that XLA cannot compile."
        )
    shape: Any = getattr(x, "shape", None)
    if hasattr(x, "set_shape") and shape.is_compatible_with(ref.shape):  # lookups in tables forget what Keras knows
        x.set_shape(ref.shape)
    return x


def _upstream(nodes: Sequence, stop: Sequence, model: keras.Model) -> list:
    """The nodes that cannot be compiled and all that they need, in order."""
    makers = {id(x): node for node in nodes for x in node.outputs}
    reason, todo = {id(node): node for node in stop}, list(stop)
    while todo:
        node = todo.pop()
        for maker in {id(x): makers[id(x)] for x in node.input_tensors if id(x) in makers}.values():
            if id(maker) not in reason:
                reason[id(maker)] = reason[id(node)]
                todo.append(maker)
    front = [node for node in nodes if id(node) in reason]
    for node in front:
        _check_leads(model, node.operation, reason[id(node)].operation)
    return front


def _check_leads(model: keras.Model, operation: Any, blocker: Any) -> None:
    """Raise unless `operation`, which `blocker` is or needs, is the same whatever is trained, and runs in tf.data."""
    what = f"{operation.name!r} ({type(operation).__name__})"
    named = what if operation is blocker else f"{blocker.name!r} ({type(blocker).__name__})"
    fix = fix_for_layer(blocker) if isinstance(blocker, keras.Layer) else 'compile with jit_compile="auto"'
    problem = ""
    if getattr(operation, "weights", ()) and not hasattr(operation, "adapt"):
        problem = "has weights, which training changes"
    elif backend.name != "tensorflow" and not runs_in_tf_data(operation):
        problem = f"runs on {backend.name} only: in tf.data, that is for Keras' own preprocessing layers"
    if problem:
        needs = "it" if operation is blocker else f"it needs the result of {what}, which"
        raise ValueError(
            f"{WHO} cannot move {named} of {model.name!r} into the input pipeline: {needs} {problem}. It expects only "
            "layers without weights (or with adapt) between the inputs and what XLA cannot compile. What else to do: "
            f"{fix}."
        )


def _acting_in_training(operation: Any) -> list[keras.Layer]:
    layers = flat_layers(operation) if isinstance(operation, keras.Layer) else []
    return [
        layer
        for layer in layers
        if "training" in inspect.signature(layer.call).parameters
        and not isinstance(layer, keras.Model)
        and (hasattr(layer, "generator") or hasattr(layer, "seed_generator") or not is_of_keras(type(layer)))
    ]


def _crossing(model: keras.Model, inputs: Sequence, front: Sequence, behind: Sequence, outputs: Sequence) -> list:
    """The tensors that the rest gets: inputs that it takes itself, and results of what was moved."""
    if not behind:
        raise ValueError(
            f"{WHO} received {model.name!r}, of which nothing would be left: all of it is what XLA cannot compile. Map "
            "the model itself: dataset.map(lambda x, y: (model(x), y))."
        )
    taken = {id(x) for node in front for x in node.input_tensors}
    used = {id(x) for node in behind for x in node.input_tensors} | {id(x) for x in outputs}
    crossing = [x for x in inputs if id(x) in used or id(x) not in taken]
    crossing += [x for node in front for x in node.outputs if id(x) in used]
    if strings := [x.name for x in crossing if x.dtype == "string"]:
        raise ValueError(
            f"{WHO} received {model.name!r}, which returns strings ({', '.join(strings)}); XLA has none. Make a model "
            "of the other outputs."
        )
    return crossing


def _inputs_of(crossing: Sequence, inputs: Sequence, front: Sequence, behind: Sequence) -> list[keras.KerasTensor]:
    """Inputs for the rest: the model's own, and new ones, named after the input that they come from if that is one."""
    origins = {id(x): {x.name} for x in inputs}
    for node in front:
        names = set().union(*(origins[id(x)] for x in node.input_tensors))
        origins |= {id(x): names for x in node.outputs}
    direct = {id(x) for x in inputs}
    reached = [name for x in crossing for name in origins[id(x)]]
    taken = {node.operation.name for node in behind} | {x.name for x in crossing if id(x) in direct}
    made = []
    for x in crossing:
        if id(x) in direct:
            made.append(x)
            continue
        (*_, name) = origins[id(x)]
        if len(origins[id(x)]) > 1 or reached.count(name) > 1:
            name = maker_of(x).name
        while name in taken:
            name += "_moved"
        taken.add(name)
        made.append(keras.Input(batch_shape=x.shape, dtype=x.dtype, sparse=x.sparse, name=name))
    return made


def _made(model: keras.Model, *arguments: Any) -> keras.Model:
    """A model of the same class: of layers, where that is a chain of them, or of inputs and outputs."""
    chain = len(arguments) == 1
    if is_of_keras(type(model)):
        return (keras.Sequential if chain else keras.Model)(*arguments, name=model.name)
    problem: Exception | str = "the rest is no chain of layers"
    if isinstance(model, keras.Sequential) == chain:
        try:
            return type(model)(*arguments, name=model.name)
        except TypeError as error:
            problem = error
    raise ValueError(
        f"{WHO} cannot make the rest of {model.name!r} as a {type(model).__name__} ({problem}); it expects a class "
        "whose constructor takes what that of keras.Model or keras.Sequential takes."
    )
