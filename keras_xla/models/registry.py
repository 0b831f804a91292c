"""Which architecture is which family. A new one is a file in `convert/` and a row here."""

import os
from typing import TYPE_CHECKING, Any

import keras

from keras_xla import backend
from keras_xla.models.build import build
from keras_xla.models.convert.bart import BART, MBART
from keras_xla.models.convert.common import Family, OnRead, load, untied
from keras_xla.models.convert.config_keys import ModelConfig, read_config
from keras_xla.models.convert.gpt2 import GPT2
from keras_xla.models.convert.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from keras_xla.models.convert.marian import MARIAN
from keras_xla.models.convert.opt import OPT
from keras_xla.models.convert.shared_keys import check_shared_keys
from keras_xla.models.convert.sizes import check_sizes
from keras_xla.models.convert.t5 import MT5, T5
from keras_xla.models.convert.whisper import WHISPER
from keras_xla.models.encoder_decoder import EncoderDecoderModel
from keras_xla.models.layers.matrices import check_quantization
from keras_xla.models.sources.live import follow
from keras_xla.models.transformer import Transformer

if TYPE_CHECKING:
    from keras_xla.models.sources.checkpoint import Checkpoint

FAMILIES: dict[str, Family] = {
    "bart": BART,
    "gpt2": GPT2,
    "llama": LLAMA,
    "marian": MARIAN,
    "mbart": MBART,
    "ministral": MISTRAL,  # as transformers 5 saves a Mistral whose layers are of two kinds
    "mistral": MISTRAL,
    "mt5": MT5,
    "opt": OPT,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "t5": T5,
    "whisper": WHISPER,
}

_UNFIT = (ValueError, TypeError, ArithmeticError, KeyError, AttributeError)  # what wrong values in a config lead to
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def model_config(checkpoint: "Checkpoint") -> ModelConfig:
    """What is read of a checkpoint's config, with the defaults of its architecture.

    Raises:
        ValueError: unknown architecture; or a config with wrong values, or that does not fit its weights.
    """
    kind = checkpoint.config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ValueError(f"{checkpoint.path}: received the architecture model_type={kind!r}; expected one of {known}.")
    family, path = FAMILIES[kind], checkpoint.path
    where = os.path.join(path, "config.json") if os.path.isdir(path) else path
    config = read_config(checkpoint.config, family.keys, where)
    if not hasattr(checkpoint, "variable"):  # a live model has the sizes that it has
        check_sizes(checkpoint, config, family.sizes)
    return config


def load_model(
    checkpoint: "Checkpoint",
    dtype: str | None = None,
    quantization: str | None = None,
    report: OnRead | None = None,
) -> Transformer | EncoderDecoderModel:
    """The model of an open checkpoint, weights and all.

    Args:
        checkpoint: What `open_checkpoint` returned.
        dtype: dtype or dtype policy of weights and computation; Keras' own default if None; `"auto"` for that of the
            checkpoint.
        quantization: How matrices are stored, see `matrices.stored_as`.
        report: Told of the bytes of the weights, as they are read.

    Raises:
        ValueError: unknown architecture or `quantization`; a dtype of no floats; or weights that are missing,
            unexpected, of the wrong shape or not finite, all named at once.
    """
    check_quantization(quantization)
    dtype = checkpoint.dtype() if dtype == "auto" else dtype
    if dtype is not None and _compute_dtype(dtype) not in _DTYPES:
        raise ValueError(f"Received dtype={dtype!r}; expected one that computes in {', '.join(_DTYPES)}, or None.")
    if dtype is not None and _compute_dtype(dtype) == "float64" and not backend.has_float64():
        raise ValueError(
            f"Received dtype={dtype!r}, or a checkpoint of it, while JAX has no float64 and would compute in float32. "
            'Call jax.config.update("jax_enable_x64", True) first, or pass dtype="float32".'
        )
    config, kind = model_config(checkpoint), checkpoint.config["model_type"]
    family = FAMILIES[kind]

    def build_model():
        try:
            check_shared_keys(checkpoint.config, family.keys)
            spec = family.spec(family.as_stored(config, checkpoint))
            return build(untied(spec, family, checkpoint), dtype, kind, quantization)
        except _UNFIT as error:
            raise ValueError(
                f"{checkpoint.path}: its config does not describe a {kind!r} model that can run here: "
                f"{str(error).rstrip('.')}. Is the file whole, and does it belong to this checkpoint?"
            ) from error

    model, filled = load(build_model, family, checkpoint, report)
    follow(model, filled, checkpoint)
    return model


def _compute_dtype(dtype: Any) -> str | None:
    """Of a dtype or its policy; None for what is neither, and for the policy of quantized layers."""
    try:
        policy = keras.dtype_policies.get(dtype)
        return None if getattr(policy, "quantization_mode", None) else policy.compute_dtype
    except (AttributeError, TypeError, ValueError):  # Keras takes "int8" for the beginning of a quantized policy's name
        return None
