"""A spec becomes a model, and a model one whose weights are stored in another way."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_xla.models.encoder_decoder import EncoderDecoderModel
from keras_xla.models.layers.matrices import Matrix, stored_as
from keras_xla.models.parameters import parameters
from keras_xla.models.spec import EncoderDecoderSpec, ModelSpec
from keras_xla.models.transformer import Transformer
from keras_xla.models.weights import Unmade, unmade_weights
from keras_xla.private.keras.layers import flat_layers


def build(
    spec: ModelSpec, dtype: Any = None, name: str | None = None, quantization: str | None = None
) -> Transformer | EncoderDecoderModel:
    """The model of a spec, with random weights.

    Args:
        spec: `DecoderSpec` or `EncoderDecoderSpec`.
        dtype: dtype or dtype policy of weights and computation; Keras' own default if None.
        name: Name of the layer.
        quantization: How matrices are stored, see `matrices.stored_as`.
    """
    kind: Any = EncoderDecoderModel if isinstance(spec, EncoderDecoderSpec) else Transformer
    with stored_as(quantization):
        return kind(spec, dtype=dtype, name=name)


def quantize(model: Transformer | EncoderDecoderModel, quantization: str | None) -> Transformer | EncoderDecoderModel:
    """A copy of a model whose matrices are stored in another way."""
    with unmade_weights() as unmade:
        made = build(model.spec, model.dtype_policy, model.name, quantization)
        for target, source in zip(parameters(made).values(), parameters(model).values(), strict=True):
            make_from(source.numpy, target, unmade)
    for target, source in zip(flat_layers(made), flat_layers(model), strict=True):  # outer ones first
        target.trainable = source.trainable
    made.generation_config = model.generation_config
    return made


def make_from(read: Callable[[], Any], target: keras.Variable | Matrix, unmade: Unmade) -> None:
    """Let a variable, or those of a matrix, be made of the values that `read` returns."""
    if isinstance(target, keras.Variable):
        unmade[id(target)].read = read
        return
    parts: list = []

    def part(i: int) -> np.ndarray:
        if not parts:
            parts.extend(target.parts(read()))
        found, parts[i] = parts[i], None
        return found

    for i, variable in enumerate(target.variables):
        unmade[id(variable)].read = functools.partial(part, i)
