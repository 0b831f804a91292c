"""Whisper: BART, pre-norm, that listens; no bias on the keys, English-only and multilingual alike."""

from keras_xla.models.convert.bart import SIZES, stack, stack_keys, stack_modules
from keras_xla.models.convert.common import Family
from keras_xla.models.convert.config_keys import generation_keys, token_ids, whole
from keras_xla.models.spec import (
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    LearnedPositions,
    NormSpec,
    SpeechSource,
)

_KEYS = {
    "vocab_size": whole(51865),
    "num_mel_bins": whole(80),
    "max_source_positions": whole(1500),
    "max_target_positions": whole(448),
    "suppress_tokens": token_ids(None),
    "begin_suppress_tokens": token_ids((220, 50256)),
    **stack_keys(384, layers=4, heads=6, ffn_dim=1536),
    **generation_keys(eos=50256, pad=50256, start=50257, encoder=True),
}


def _spec(config) -> EncoderDecoderSpec:
    norm = NormSpec("layer", 1e-5, "pre")
    return EncoderDecoderSpec(
        EncoderSpec(
            source=SpeechSource(config.num_mel_bins),
            position=LearnedPositions(config.max_source_positions),
            **stack(config, "encoder", norm),
        ),
        DecoderSpec(
            vocab_size=config.vocab_size,
            position=LearnedPositions(config.max_target_positions),
            tied=config.tie_word_embeddings,
            **stack(config, "decoder", norm),
        ),
    )


def _modules(spec: EncoderDecoderSpec) -> dict[str, tuple[str, ...]]:
    return {
        "encoder.front.0": ("encoder.conv1",),
        "encoder.front.1": ("encoder.conv2",),
        "decoder.embedding": ("decoder.embed_tokens.weight" + "=proj_out.weight" * spec.decoder.tied,),
        "decoder.head": ("proj_out.weight",),
        "encoder.positions": ("encoder.embed_positions",),
        "decoder.positions": ("decoder.embed_positions",),
        **stack_modules("encoder", spec.encoder.layers),
        **stack_modules("decoder", spec.decoder.layers),
    }


# A bias on the keys adds the same to all scores of a query, which the softmax takes away: it is zero here.
_SIZES = (*SIZES, "max_source_positions*d_model", "max_target_positions*d_model", "num_mel_bins*d_model")
WHISPER = Family(_KEYS, _spec, _modules, _SIZES, "model.", ignored=r"(?!)", optional=r"\.k_proj\.bias$")
