"""Marian (the OPUS-MT translators): BART with sinusoidal positions and without a norm on the embeddings."""

from typing import Any

from keras_xla.models.convert.bart import SIZES, embeddings, stack, stack_modules
from keras_xla.models.convert.common import Family
from keras_xla.models.spec import (
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    LearnedPositions,
    NormSpec,
    SinusoidalPositions,
    TextSource,
)


def _spec(config) -> EncoderDecoderSpec:
    norm = NormSpec("layer", 1e-5, "post")
    # TensorFlow's class has the sinusoids as weights, and trains them.
    positions = LearnedPositions if getattr(config, "learned_positions", False) else SinusoidalPositions
    embedding: dict[str, Any] = dict(
        position=positions(config.max_position_embeddings),
        embedding_scale=config.d_model**0.5 if config.scale_embedding else 1.0,
    )
    one = config.share_encoder_decoder_embeddings
    source = TextSource(config.vocab_size, shared=one and config.tie_word_embeddings)
    return EncoderDecoderSpec(
        EncoderSpec(source=source, **stack(config, "encoder", norm), **embedding),
        DecoderSpec(
            vocab_size=config.vocab_size if one else config.decoder_vocab_size,
            tied=config.tie_word_embeddings,
            head_bias=True,
            **stack(config, "decoder", norm),
            **embedding,
        ),
    )


def _modules(spec: EncoderDecoderSpec) -> dict[str, tuple[str, ...]]:
    return {
        **embeddings(spec),
        "decoder.head_bias": ("final_logits_bias",),
        "encoder.positions": ("encoder.embed_positions",),
        "decoder.positions": ("decoder.embed_positions",),
        **stack_modules("encoder", spec.encoder.layers),
        **stack_modules("decoder", spec.decoder.layers),
    }


# The sinusoids are stored in some checkpoints; they are computed here.
MARIAN = Family(
    _spec,
    _modules,
    (*SIZES, "max_position_embeddings"),
    "model.",
    ignored=r"^(en|de)coder\.embed_positions\.weight$",
    optional=r"^final_logits_bias$",
)
