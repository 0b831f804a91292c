"""OPT: learned positions offset by 2; 350m is post-norm with projected embeddings and no final norm."""

from keras_xla.models.convert.bart import block_modules
from keras_xla.models.convert.common import Family, activation, embedding_of
from keras_xla.models.convert.config_keys import flag, generation_keys, text, whole
from keras_xla.models.spec import AttentionSpec, DecoderSpec, LearnedPositions, MLPSpec, NormSpec

_KEYS = {
    "vocab_size": whole(50272),
    "hidden_size": whole(768),
    "word_embed_proj_dim": whole(None),
    "num_hidden_layers": whole(12),
    "num_attention_heads": whole(12),
    "ffn_dim": whole(3072),
    "max_position_embeddings": whole(2048),
    "activation_function": text("relu"),
    "do_layer_norm_before": flag(True),
    "remove_final_layer_norm": flag(False, "_remove_final_layer_norm"),  # transformers itself reads the latter
    "enable_bias": flag(True),
    "layer_norm_elementwise_affine": flag(True),
    "tie_word_embeddings": flag(True),
    **generation_keys(eos=2, pad=1),
}


def _spec(config) -> DecoderSpec:
    heads = config.num_attention_heads
    head_dim = config.hidden_size // heads
    pre = config.do_layer_norm_before
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        embedding_size=config.word_embed_proj_dim or config.hidden_size,
        layers=config.num_hidden_layers,
        attention=AttentionSpec(
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            qkv_bias=config.enable_bias,
            out_bias=config.enable_bias,
            scale=head_dim**-0.5,
        ),
        position=LearnedPositions(config.max_position_embeddings, offset=2),
        norm=NormSpec("layer", 1e-5, placement="pre" if pre else "post", affine=config.layer_norm_elementwise_affine),
        mlp=MLPSpec(config.ffn_dim, activation(config.activation_function), gated=False, bias=config.enable_bias),
        final_norm=pre and not config.remove_final_layer_norm,
        tied=config.tie_word_embeddings,
    )


def _modules(spec: DecoderSpec) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "embedding": embedding_of(spec, "decoder.embed_tokens.weight"),
        "positions": ("decoder.embed_positions",),
        "project_in": ("decoder.project_in",),
        "project_out": ("decoder.project_out",),
        "final_norm": ("decoder.final_layer_norm",),
        "head": ("lm_head.weight",),
    }
    for i in range(spec.layers):
        table |= block_modules(f"blocks.{i}", f"decoder.layers.{i}")
    return table


_SIZES = (
    "num_hidden_layers",
    "vocab_size",
    "hidden_size",
    "?vocab_size*word_embed_proj_dim",
    "hidden_size*ffn_dim",
    "max_position_embeddings*hidden_size",
    "num_attention_heads",
)
OPT = Family(_KEYS, _spec, _modules, _SIZES, "model.")
