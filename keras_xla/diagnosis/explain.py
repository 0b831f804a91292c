"""What keeps XLA from compiling a model: which layer or operation, where, and what to do."""

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_xla.backend.keras2 import inputs_of, is_keras2, require_model
from keras_xla.backend.new_shapes import BlockingOp
from keras_xla.backend.steps import forward_blockers
from keras_xla.diagnosis.advice import fix_for_layer, fix_for_op, fix_in_function, reason_for_layer
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.private.keras.layers import layers_if_known
from keras_xla.troubleshooting import explained

_OUTSIDE = "outside of any layer (loss, metric or custom step)"


@dataclass(frozen=True)
class Blocker:
    """One thing that XLA cannot compile, and what to do about it; `str(blocker)` is one line.

    Attributes:
        layer: Name of the layer; empty outside of any layer.
        layer_class: Its class, such as `"StringLookup"`; empty outside of any layer.
        reason: The operation that XLA cannot compile, or why the layer as a whole cannot be compiled.
        where: `file:line` of your code; empty where that is not known.
        fix: What to do about it.
    """

    layer: str
    layer_class: str
    reason: str
    where: str
    fix: str

    def __str__(self):
        owner = f"{self.layer} ({self.layer_class})" if self.layer else _OUTSIDE
        place = f" at {self.where}" if self.where else ""
        return f"{owner}: {self.reason}{place}. Fix: {self.fix}."


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`: true if nothing was found that XLA cannot compile, and readable when printed.

    Attributes:
        model: Name of the model.
        blockers: A `Blocker` for each thing that was found; empty if there is none.
        traced: Whether the operations inside the layers were looked at. If False only the layers themselves were.
    """

    model: str
    blockers: tuple[Blocker, ...]
    traced: bool

    @property
    def compilable(self) -> bool:
        """Whether nothing was found that XLA cannot compile (bool)."""
        return not self.blockers

    def __bool__(self):
        return self.compilable

    def __str__(self):
        if self.blockers:
            head = f"XLA cannot compile {self.model!r}:"
            return "\n".join([head, *(f"  {blocker}" for blocker in self.blockers)])
        if self.traced:
            return f"{self.model}: everything compiles"
        return (
            f"{self.model}: no layer is in the way; the operations inside were not looked at, because nobody knows the "
            "model's inputs. Pass explain(model, sample_batch=x)."
        )


@explained
def explain(model: keras.Model, sample_batch: Any = None) -> Explanation:
    """Find what keeps XLA from compiling the forward pass of a model, without running it.

    Losses, metrics and custom steps are not looked at. `fit` checks those when it starts.

    Args:
        model: A `keras.Model`, built or not; on TensorFlow also a `tf_keras.Model`.
        sample_batch: The inputs of one batch (an array or tensor, or a structure of them, without the targets), for a
            model that does not know the shapes of its inputs, as a subclassed one. Only shapes and dtypes count. The
            model is built by it if it is not built yet.

    Returns:
        An `Explanation`: `print` it, test its truth, or read its `blockers`.

    Raises:
        TypeError: `model` is not a Keras model, or `sample_batch` has ragged or sparse tensors.
        ValueError: `model` is one of `tf_keras`, and Keras does not run on TensorFlow.

    Example:
    ```python
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    print(keras_xla.explain(model))
    ```
    """
    require_model("keras_xla.explain", model)
    ops = _forward_ops(model, sample_batch)
    blockers = layer_blockers(model)  # the trace may have built some
    others = [op for op in ops or () if getattr(layer_of(model, op.name), "supports_jit", True)]
    blockers += dict.fromkeys(_from_op(model, op) for op in others)
    return Explanation(model.name, tuple(blockers), ops is not None)


def _forward_ops(model: keras.Model, sample_batch: Any) -> list[BlockingOp] | None:
    """What a trace of the forward pass finds; None where the inputs are not known."""

    def traced(inputs):
        found = forward_blockers(lambda x: [model(x, training=True), model(x, training=False)], inputs)
        if not model.built:  # JAX, which compiles what it can trace, has traced nothing
            model(inputs)  # of tensors without values: nothing runs
        return found

    if sample_batch is not None:
        return traced(keras.tree.map_structure(_as_tensor, sample_batch))
    inputs = _known_inputs(model)
    if inputs is not None:
        return traced(inputs)
    guess = _guessed_input(model)
    with contextlib.suppress(Exception):  # of the model's own code, which may want ids, or another rank
        return None if guess is None else traced(guess)
    return None


def layer_blockers(model: keras.Model) -> list[Blocker]:
    """One blocker for each nested layer that says `supports_jit = False`."""
    return [
        Blocker(layer.name, type(layer).__name__, reason_for_layer(layer), "", fix_for_layer(layer))
        for layer in layers_if_known(model)
        if not getattr(layer, "supports_jit", True)  # Keras 2's layers do not say
    ]


def refuse_layers(model: keras.Model) -> None:
    """Raise `XLAUnsupportedError` naming every layer that cannot be compiled."""
    _refuse(model.name, layer_blockers(model))


def refuse_ops(model: keras.Model, ops: list[BlockingOp]) -> None:
    """Raise `XLAUnsupportedError` naming the operations that a trace of a model's step found, and their layers."""
    _refuse(model.name, list(dict.fromkeys(_from_op(model, op) for op in ops)))


def refuse_ops_in_function(name: str, owner: Any, ops: list[BlockingOp]) -> None:
    """The same of a function that somebody has compiled, or of a layer or one of its methods, whose `owner` it is."""
    layer = owner if isinstance(owner, keras.layers.Layer) else None
    blockers = dict.fromkeys(_from_op(layer, op, fix_in_function) for op in ops)
    _refuse(name, [str(blocker).removeprefix(f"{_OUTSIDE}: ") for blocker in blockers])


def _refuse(name: str, blockers: Sequence[Blocker | str]) -> None:
    if blockers:
        lines = "\n".join(f"  {blocker}" for blocker in blockers)
        raise XLAUnsupportedError(f"XLA cannot compile {name!r}, and nothing of it has run:\n{lines}")


def _from_op(model: keras.layers.Layer | None, op: BlockingOp, fix: Callable = fix_for_op) -> Blocker:
    layer = layer_of(model, op.name) if model is not None else None
    name, kind = (layer.name, type(layer).__name__) if layer is not None else ("", "")
    if op.op.startswith("string"):
        reason = op.op
    elif " " in op.op:  # of some uses only
        reason = f"XLA cannot do the operation {op.op}"
    else:
        reason = f"the operation {op.op} has no XLA kernel"
    return Blocker(name, kind, reason, op.where, fix(op.op, layer))


def layer_of(model: keras.layers.Layer, op_name: str) -> keras.layers.Layer | None:
    """The innermost layer in the name scopes of an operation: `gradient_tape/sequential_1/lambda_1/StringUpper`."""
    everywhere = layers_if_known(model)
    found, inside = None, everywhere
    for scope in op_name.split("/")[:-1]:
        names = scope, re.sub(r"_\d+$", "", scope)  # TensorFlow numbers a scope that is entered again
        # Two models inside of this one may each have a layer of that name.
        hits = [
            x for among in (inside, everywhere) for name in names for x in among if x.name == name and x is not found
        ]
        if hits:
            found, inside = hits[0], layers_if_known(hits[0])
    return found


def place_of(model: keras.Model, op_name: str) -> str:
    """Where an operation is, as a part of a sentence: ` in the layer 'pick' (Pick)`; empty outside of any layer."""
    layer = layer_of(model, op_name)
    return f" in the layer {layer.name!r} ({type(layer).__name__})" if layer is not None else ""


def _known_inputs(model: keras.Model):
    if is_keras2(model):
        return inputs_of(model)
    if not model.built:
        return None
    if getattr(model, "inputs", None):
        single = isinstance(model, keras.Sequential)  # which has no structure of inputs
        return model.inputs[0] if single else model.input
    return None


def _guessed_input(model: keras.Model):
    """A tensor of the shape that a subclassed model was built for, of whose dtype it knows nothing."""
    if is_keras2(model) or not model.built:
        return None
    shape = (model.get_build_config() or {}).get("input_shape")
    if not isinstance(shape, (tuple, list)) or not all(isinstance(size, int | None) for size in shape):
        return None
    return keras.KerasTensor(shape, dtype=model.compute_dtype)


def _as_tensor(x):
    if type(x).__name__ in ("RaggedTensor", "SparseTensor", "BCOO"):
        raise TypeError(
            f"keras_xla.explain received a {type(x).__name__} in sample_batch; it expects dense arrays or tensors, as "
            "XLA knows no others. Pass what the model makes of it."
        )
    dtype = getattr(x, "dtype", "float32")
    if getattr(dtype, "kind", "") in ("S", "U", "O"):  # NumPy's strings, for whose dtypes Keras has no name
        dtype = "string"
    return keras.KerasTensor(keras.ops.shape(x), dtype=keras.backend.standardize_dtype(dtype))
