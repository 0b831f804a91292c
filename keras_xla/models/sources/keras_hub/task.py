"""Live KerasHub tasks: as models of ours where a spec describes them, or else through their own calls."""

import dataclasses
import functools
from typing import Any

import numpy as np

from keras_xla.models.build import build
from keras_xla.models.convert.common import load
from keras_xla.models.convert.config_keys import read_config
from keras_xla.models.encoder_decoder import EncoderDecoderModel
from keras_xla.models.recompute import Recompute
from keras_xla.models.sources.keras_hub.cached import CachedTask, own_decoder
from keras_xla.models.sources.keras_hub.layouts import LAYOUTS, Layout
from keras_xla.models.sources.live import follow
from keras_xla.models.spec import DecoderSpec
from keras_xla.models.transformer import Transformer
from keras_xla.private.keras_hub import query_norm_epsilon


class TaskWeights:
    """The weights of a live task as a checkpoint, in PyTorch's layout; reading copies nothing on CPU.

    Args:
        task: The task.
        layout: What `layout_of(task)` gave.
    """

    def __init__(self, task: Any, layout: Layout):
        self.path = f"the live {type(task).__name__} {task.name!r}"
        self.config = {"model_type": layout.kind, **layout.config(task.backbone)}
        self._variables = layout.names(task.backbone)

    def names(self) -> set[str]:
        """The names of all variables."""
        return set(self._variables)

    def shape(self, name: str) -> tuple[int, ...]:
        """A variable's shape in PyTorch's layout."""
        return self.read(name).shape

    def read(self, name: str) -> np.ndarray:
        """One variable's value, in PyTorch's layout; a view on CPU."""
        variable = self._variables[name]
        value, shape = variable.value, tuple(variable.shape)
        # TensorFlow's conversion of a variable would copy it; a tensor read from it is a view.
        array = np.asarray(value.read_value() if hasattr(value, "read_value") else value)
        if variable.name == "kernel":  # of a dense layer, or of one with heads on its input or output side
            heads_in = "attention_output" in variable.path
            return (array.reshape(-1, shape[-1]) if heads_in else array.reshape(shape[0], -1)).T
        if variable.name == "reverse_embeddings":
            return array.T
        return array.reshape(-1) if variable.name == "bias" else array

    def variable(self, name: str) -> Any | None:
        """The backend's variable whose value `read(name)` is as it stands; None if the layouts differ."""
        variable = self._variables[name]
        same = variable.name not in ("kernel", "reverse_embeddings") and self.shape(name) == tuple(variable.shape)
        return variable.value if same else None

    def transposed(self, name: str) -> Any | None:
        """The backend's variable whose value is the transpose of `read(name)`; None if there is none."""
        variable = self._variables[name]
        turned = variable.name in ("kernel", "reverse_embeddings") and len(variable.shape) == 2
        return variable.value if turned else None


def is_task(model: Any) -> bool:
    """Whether `model` is a KerasHub task that makes text."""
    return any(
        kind.__name__ in ("CausalLM", "Seq2SeqLM") and kind.__module__.startswith("keras_hub.")
        for kind in type(model).__mro__
    )


def layout_of(task: Any) -> Layout | None:
    """The layout of a task; None if there is none for its class or weights (quantized ones, or a LoRA)."""
    layout = LAYOUTS.get(type(task).__name__)
    if layout is None or not type(task).__module__.startswith("keras_hub."):  # a subclass may compute something else
        return None
    if type(task.backbone).__name__ != layout.backbone:
        return None
    known = {id(variable) for variable in layout.names(task.backbone).values()}
    return layout if known == {id(variable) for variable in task.backbone.weights} else None


def open_task(task: Any, quantization: str | None = None) -> Transformer | EncoderDecoderModel | CachedTask | Recompute:
    """The decoder of a live task.

    Tasks of the classes in `LAYOUTS` become models of ours, which share or follow their weights (see
    `sources.live.refresh`); other causal language models, and those that are quantized or have a LoRA, run
    through their own cached call, or if there is none that XLA can trace, without a cache.

    Args:
        task: One for which `is_task` is true.
        quantization: How the matrices of a model of ours are stored, see `matrices.stored_as`.

    Raises:
        TypeError: for other encoder-decoders, and for tasks that read more than tokens.
    """
    layout = layout_of(task)
    if layout is not None:
        return load_task(task, layout, quantization)
    if any(kind.__name__ == "Seq2SeqLM" for kind in type(task).__mro__):
        known = ", ".join(name for name in LAYOUTS if name.endswith("Seq2SeqLM"))
        raise TypeError(
            f"Received the KerasHub task {type(task).__name__} {task.name!r}; the encoder-decoders that can run are "
            f"{known}, not subclasses of them, without quantization and LoRA."
        )
    return own_decoder(task)


def load_task(task: Any, layout: Layout, quantization: str | None = None) -> Transformer | EncoderDecoderModel:
    """Our model with the weights of a live task, which it follows from now on."""
    source = TaskWeights(task, layout)
    config = read_config(source.config, layout.family.keys, source.path)
    spec = layout.adjust(layout.family.spec(config), task.backbone)
    if isinstance(spec, DecoderSpec) and spec.attention.qk_norm:
        # KerasHub leaves it at its layer's default, whatever the backbone's epsilon.
        epsilon = query_norm_epsilon(task.backbone.transformer_layers[0])
        spec = dataclasses.replace(spec, attention=dataclasses.replace(spec.attention, qk_norm_epsilon=epsilon))
    make = functools.partial(build, spec, task.backbone.dtype_policy, layout.kind, quantization)
    model, filled = load(make, layout.family, source)
    follow(model, filled, source)
    return model
