"""Live Hugging Face TensorFlow models (transformers 4, tf-keras) as checkpoints."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_xla.backend.requirements import require
from keras_xla.models.sources.dtypes import dtype_of_most
from keras_xla.models.sources.tensorflow.names import as_pytorch, config_as_computed, flat
from keras_xla.private.transformers import generation_config

CLASSES: dict[str, tuple[str, ...]] = {
    "bart": ("TFBartForConditionalGeneration",),
    "gpt2": ("TFGPT2LMHeadModel",),
    "marian": ("TFMarianMTModel",),
    "mbart": ("TFMBartForConditionalGeneration",),
    "mistral": ("TFMistralForCausalLM",),
    "mt5": ("TFMT5ForConditionalGeneration",),
    "opt": ("TFOPTForCausalLM",),
    "t5": ("TFT5ForConditionalGeneration",),
    "whisper": ("TFWhisperForConditionalGeneration",),
}
"""The classes that are read, by `model_type`; subclasses of them too."""


def accepts(model: Any) -> bool:
    """Whether `model` is an instance of one of `CLASSES`."""
    return any(
        kind.__name__ in names and kind.__module__.startswith("transformers.")
        for kind in type(model).__mro__
        for names in CLASSES.values()
    )


class TransformersTF:
    """The variables of a live model under PyTorch's names and in PyTorch's layout.

    Reading copies nothing on CPU: `read` gives read-only views of the values at that time. A model without
    weights yet is built.

    Args:
        model: One for which `accepts` is true.
    """

    read_tokenizer: Callable[[], Any] | None = None  # a live model has none

    def __init__(self, model: Any):
        require("transformers", "Reading the weights of a live TensorFlow model")
        if not model.built:
            model.build_in_name_scope()
        self.path = f"the live {type(model).__name__} {model.name!r}"
        self.generation_config: dict[str, Any] = generation_config(model).to_diff_dict()
        self._variables: dict[str, tuple[Any, tuple[int, ...] | None]] = {}
        for variable in model.weights:
            name, axes = as_pytorch(_own_name(variable, model.name), variable.shape)
            self._variables[name] = variable, axes
        self.config: dict[str, Any] = config_as_computed(model.config.to_dict(), self._variables)

    def names(self) -> set[str]:
        """The names of all variables."""
        return set(self._variables)

    def shape(self, name: str) -> tuple[int, ...]:
        """A variable's shape in PyTorch's layout."""
        variable, axes = self._variables[name]
        shape = tuple(variable.shape)
        return flat(name, shape) if axes is None else tuple(shape[axis] for axis in axes)

    def dtype(self) -> str:
        """The float dtype of most of its numbers."""
        return dtype_of_most((variable.dtype.name, variable.shape) for variable, _ in self._variables.values())

    def read(self, name: str) -> np.ndarray:
        """One variable's value, in PyTorch's layout; a read-only view on CPU."""
        variable, axes = self._variables[name]
        array = np.asarray(variable.read_value())
        return array.reshape(flat(name, array.shape)) if axes is None else array.transpose(axes)

    def variable(self, name: str) -> Any | None:
        """The variable whose value `read(name)` is as it stands; None if the layouts differ."""
        variable, axes = self._variables[name]
        return variable if axes is None and self.shape(name) == tuple(variable.shape) else None

    def transposed(self, name: str) -> Any | None:
        """The variable whose value is the transpose of `read(name)`; None if there is none."""
        variable, axes = self._variables[name]
        return variable if axes == (1, 0) else None


def _own_name(variable: Any, model: str) -> str:
    """A variable's name from the scope of its model on: one built inside another has that one's scopes in front."""
    scopes = variable.name.split("/")
    return "/".join(scopes[scopes.index(model) :]) if model in scopes[:-1] else variable.name
