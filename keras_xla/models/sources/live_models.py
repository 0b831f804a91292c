"""Whatever a user passes as the model: what decodes it, what tokenizes for it, and where its texts end."""

from typing import Any

import keras

from keras_xla.models.build import quantize
from keras_xla.models.encoder_decoder import EncoderDecoderModel
from keras_xla.models.interface import Decoder, EncoderDecoder
from keras_xla.models.layers.matrices import check_quantization
from keras_xla.models.recompute import Recompute
from keras_xla.models.registry import load_model
from keras_xla.models.sources.keras_hub.task import is_task, open_task
from keras_xla.models.sources.keras_hub.tokenizer import options_of_task, tokenizer_of_task
from keras_xla.models.sources.live import SameWeights
from keras_xla.models.sources.transformers_tf import CLASSES, TransformersTF, accepts
from keras_xla.models.transformer import Transformer

_DATA = ("vocab_size", "max_positions", "variables")
_PROTOCOLS = {("prefill", "step"): _DATA, ("encode", "remember", "with_memory"): (*_DATA, "max_source")}


def as_decoder(model: Any, quantization: str | None = None) -> Decoder | EncoderDecoder:
    """The decoder of any model that can make text.

    Args:
        model: One of these. A model of ours, or any object that implements `Decoder` or `EncoderDecoder`: it is
            returned as it is. A KerasHub `CausalLM` or `Seq2SeqLM`. A TensorFlow model of transformers 4 with a
            language model head. Any other Keras model from ids `(batch, length)` to logits
            `(batch, length, vocab)`, see `Recompute`. What is returned uses the weights that the model has at
            each run; call `sources.live.refresh` on it before.
        quantization: How the matrices of a model of ours are stored, see `matrices.stored_as`; by default as they are.

    Raises:
        TypeError: for anything else, saying what was received.
        NotImplementedError: for `quantization` of what does not become a model of ours.
        ValueError: for a Keras model whose outputs are no logits for each token, or that is not causal; and for an
            unknown `quantization`.
    """
    check_quantization(quantization)
    if accepts(model):
        live: Any = load_model(TransformersTF(model), quantization=quantization)
        live.same_weights, live.generation_config = SameWeights(model), options_of(model)
        return live
    decoder: Any = open_task(model, quantization) if is_task(model) else _as_it_is(model)
    if is_task(model) and isinstance(decoder, (Transformer, EncoderDecoderModel)):
        decoder.generation_config = options_of(model)
    if decoder is not model and isinstance(model, keras.layers.Layer):
        decoder.same_weights = SameWeights(model)
    now = getattr(decoder, "quantization", None)
    return decoder if quantization in (None, now) else quantized(decoder, quantization)


def quantized(decoder: Decoder | EncoderDecoder, quantization: str | None) -> Transformer | EncoderDecoderModel:
    """A copy of a model of ours whose matrices are stored as `quantization` says, see `matrices.stored_as`.

    Raises:
        NotImplementedError: for a model that is not ours; Keras' `Model.quantize` makes a warning of it.
        ValueError: for one that is quantized, or follows a live model; and for an unknown or no `quantization`.
    """
    check_quantization(quantization)
    asked = f"Received quantization={quantization!r}"
    if not isinstance(decoder, (Transformer, EncoderDecoderModel)):
        raise NotImplementedError(
            f"{asked} for a {type(decoder).__name__}, which computes its products itself. Quantize the model by its "
            "own method before, or leave that out."
        )
    if decoder.quantization is not None:
        raise ValueError(f"{asked} for a model that is quantized ({decoder.quantization}) already.")
    if getattr(decoder, "follower", None) is not None:
        raise ValueError(f"{asked} for the weights of a live model; give that to XLAGenerationLayer(model, ...).")
    if quantization is None:
        raise ValueError(f'{asked}; expected "int8" or "int4".')
    return quantize(decoder, quantization)


def _as_it_is(model: Any) -> Decoder | EncoderDecoder:
    if _implements_protocol(model):
        return model
    if isinstance(model, keras.layers.Layer) and not _is_backbone(model):
        return Recompute(model)
    raise TypeError(_refusal(model))


def tokenizer_of(model: Any) -> Any | None:
    """The tokenizer that comes with a model; None where there is none."""
    return tokenizer_of_task(model) if is_task(model) else None


def options_of(model: Any) -> dict[str, Any]:
    """The generation options that come with a model, by their Hugging Face names."""
    if is_task(model):
        return options_of_task(model)
    if accepts(model):
        return TransformersTF(model).generation_config
    return model.generation_config if isinstance(model, (Transformer, EncoderDecoderModel)) else {}


def _implements_protocol(model: Any) -> bool:
    """Whether a model has the methods of a protocol.

    Raises:
        TypeError: if it has those, but lacks an attribute.
    """
    for methods, data in _PROTOCOLS.items():
        if all(callable(getattr(model, name, None)) for name in methods):
            if missing := [name for name in data if not hasattr(model, name)]:
                raise TypeError(
                    f"Received a {type(model).__name__} with the methods {' and '.join(methods)}, but without "
                    f"{', '.join(missing)}; see keras_xla.models.interface for what a decoder has."
                )
            return True
    return False


def _is_backbone(model: Any) -> bool:
    return any(kind.__name__ == "Backbone" and kind.__module__.startswith("keras_hub.") for kind in type(model).__mro__)


def _refusal(model: Any) -> str:
    kind = type(model)
    modules = {base.__module__.split(".")[0] for base in kind.__mro__}
    if _is_backbone(model):
        hint = "A backbone has no logits: pass the task, such as keras_hub.models.CausalLM(backbone=...)."
    elif "torch" in modules:
        hint = "For a PyTorch model: model.save_pretrained(folder), then XLAGenerationLayer.from_pretrained(folder)."
    elif "tf_keras" in modules:
        known = ", ".join(name for names in CLASSES.values() for name in names)
        hint = f"Of Keras 2 models, only these of transformers 4 can be used: {known}."
    elif isinstance(model, str):
        hint = "For a checkpoint use XLAGenerationLayer.from_pretrained(...)."
    else:
        hint = "See docs/own_decoder.md for how to write a decoder."
    return (
        f"Received a {kind.__module__}.{kind.__qualname__} as the model; expected a Keras model from ids "
        "(batch, length) to logits (batch, length, vocab), a KerasHub CausalLM or Seq2SeqLM, a TensorFlow language "
        f"model of transformers 4, or an object that implements keras_xla.models.interface.Decoder. {hint}"
    )
