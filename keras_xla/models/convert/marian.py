"""Marian (the OPUS-MT translators): BART with sinusoidal positions and without a norm on the embeddings."""

import re
from typing import Any

import numpy as np

from keras_xla.models.convert.bart import SIZES, modules, stack, stack_keys
from keras_xla.models.convert.common import Family
from keras_xla.models.convert.config_keys import (
    MOST_COMPUTED,
    ModelConfig,
    flag,
    generation_keys,
    token_ids,
    whole,
)
from keras_xla.models.layers.positions import sinusoids
from keras_xla.models.spec import (
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    LearnedPositions,
    NormSpec,
    SinusoidalPositions,
    TextSource,
)

_ROUNDED = 0.005  # sinusoids in bfloat16 are as far from those that are computed
_KEYS = {
    "vocab_size": whole(58101),
    "decoder_vocab_size": whole(None),
    "max_position_embeddings": whole(1024, most=MOST_COMPUTED),
    "scale_embedding": flag(False),
    "share_encoder_decoder_embeddings": flag(True),
    "learned_positions": flag(False),  # a key of ours, see `tensorflow/names.py`
    "forced_eos_token_id": token_ids(0),
    **stack_keys(1024, layers=12, heads=16, ffn_dim=4096),
    **generation_keys(eos=0, pad=58100, start=58100, encoder=True),
}


def _spec(config) -> EncoderDecoderSpec:
    norm = NormSpec("layer", 1e-5, "post")
    # TensorFlow's class has the sinusoids as weights, and trains them.
    positions = LearnedPositions if config.learned_positions else SinusoidalPositions
    embedding: dict[str, Any] = dict(
        position=positions(config.max_position_embeddings),
        embedding_scale=config.d_model**0.5 if config.scale_embedding else 1.0,
    )
    one = config.share_encoder_decoder_embeddings
    source = TextSource(config.vocab_size, shared=one and config.tie_word_embeddings)
    return EncoderDecoderSpec(
        EncoderSpec(source=source, **stack(config, "encoder", norm), **embedding),
        DecoderSpec(
            vocab_size=config.vocab_size if one else config.decoder_vocab_size or config.vocab_size,
            tied=config.tie_word_embeddings,
            head_bias=True,
            **stack(config, "decoder", norm),
            **embedding,
        ),
    )


_POSITIONS = r"^(model\.)?(en|de)coder\.embed_positions\.weight$"


def _as_stored(config: ModelConfig, checkpoint: Any) -> ModelConfig:
    """Some checkpoints store the sinusoids, which are computed here; what others store there counts, as in PyTorch."""
    if config.learned_positions:
        return config
    shape = config.max_position_embeddings, config.d_model
    names = [name for name in checkpoint.names() if re.search(_POSITIONS, name)]
    fits = all(tuple(checkpoint.shape(name)) == shape for name in names)
    computed = sinusoids(*shape) if names and fits else None
    usual = fits and all(np.allclose(checkpoint.read(x).astype("float32"), computed, atol=_ROUNDED) for x in names)
    return ModelConfig(**{**vars(config), "learned_positions": not usual})


MARIAN = Family(
    _KEYS,
    _spec,
    modules,
    (*SIZES, "max_position_embeddings"),
    "model.",
    ignored=_POSITIONS,
    optional=r"^final_logits_bias$",
    as_stored=_as_stored,
)
