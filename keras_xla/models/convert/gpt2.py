"""GPT-2: learned positions, pre-norm, fused projections stored `[in, out]`."""

from keras_xla.models.convert.common import Family, activation, embedding_of
from keras_xla.models.convert.config_keys import flag, generation_keys, number, text, whole
from keras_xla.models.spec import AttentionSpec, DecoderSpec, LearnedPositions, MLPSpec, NormSpec

_KEYS = {
    "vocab_size": whole(50257),
    "n_positions": whole(1024, "max_position_embeddings"),
    "n_embd": whole(768, "hidden_size"),
    "n_layer": whole(12, "num_hidden_layers"),
    "n_head": whole(12, "num_attention_heads"),
    "n_inner": whole(None),
    "activation_function": text("gelu_new"),
    "layer_norm_epsilon": number(1e-5, zero=True),
    "scale_attn_weights": flag(True),
    "scale_attn_by_inverse_layer_idx": flag(False),
    "tie_word_embeddings": flag(True),
    **generation_keys(eos=50256),
}


def _spec(config) -> DecoderSpec:
    head_dim = config.n_embd // config.n_head
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        embedding_size=config.n_embd,
        layers=config.n_layer,
        attention=AttentionSpec(
            heads=config.n_head,
            kv_heads=config.n_head,
            head_dim=head_dim,
            qkv_bias=True,
            out_bias=True,
            scale=head_dim**-0.5 if config.scale_attn_weights else 1.0,
            scale_by_layer=config.scale_attn_by_inverse_layer_idx,
        ),
        position=LearnedPositions(config.n_positions),
        norm=NormSpec("layer", config.layer_norm_epsilon),
        mlp=MLPSpec(
            config.n_inner or 4 * config.n_embd, activation(config.activation_function), gated=False, bias=True
        ),
        final_norm=True,
        tied=config.tie_word_embeddings,
    )


def _modules(spec: DecoderSpec) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "embedding": embedding_of(spec, "wte.weight"),
        "positions": ("wpe",),
        "final_norm": ("ln_f",),
        "head": ("lm_head.weight",),
    }
    for i in range(spec.layers):
        table |= {
            f"blocks.{i}.attention_norm": (f"h.{i}.ln_1",),
            f"blocks.{i}.attention.qkv": (f"h.{i}.attn.c_attn",),
            f"blocks.{i}.attention.out": (f"h.{i}.attn.c_proj",),
            f"blocks.{i}.mlp_norm": (f"h.{i}.ln_2",),
            f"blocks.{i}.mlp.up": (f"h.{i}.mlp.c_fc",),
            f"blocks.{i}.mlp.down": (f"h.{i}.mlp.c_proj",),
        }
    return table


GPT2 = Family(
    _KEYS,
    _spec,
    _modules,
    ("n_layer", "vocab_size*n_embd", "n_positions*n_embd", "n_head", "?n_inner*n_embd"),
    "transformer.",
    ignored=r"\.attn\.(masked_)?bias$",
    transposed=r"\.(c_attn|c_proj|c_fc)\.weight$",
)
