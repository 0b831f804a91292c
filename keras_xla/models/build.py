"""A spec becomes a model."""

from typing import Any

from keras_xla.models.encoder_decoder import EncoderDecoder
from keras_xla.models.spec import DecoderSpec, EncoderDecoderSpec, ModelSpec
from keras_xla.models.transformer import Transformer


def build(spec: ModelSpec | dict, dtype: Any = None, name: str | None = None) -> Transformer | EncoderDecoder:
    """The model of a spec, with random weights.

    Args:
        spec: `DecoderSpec` or `EncoderDecoderSpec`, or what its `to_dict` gave (through JSON or not).
        dtype: dtype or dtype policy of weights and computation; Keras' own default if None.
        name: Name of the layer.
    """
    if isinstance(spec, dict):
        spec = (EncoderDecoderSpec if "encoder" in spec else DecoderSpec).from_dict(spec)
    kind = EncoderDecoder if isinstance(spec, EncoderDecoderSpec) else Transformer
    return kind(spec, dtype=dtype, name=name)
