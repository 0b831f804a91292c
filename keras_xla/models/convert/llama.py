"""Llama 2 and 3, SmolLM, Mistral, Qwen2 and Qwen3: one layout, a few switches."""

from keras_xla.models.convert.common import Family, activation, rotary, windows
from keras_xla.models.spec import AttentionSpec, DecoderSpec, MLPSpec, NormSpec


def _spec(config, *, qkv_bias: bool, out_bias: bool, qk_norm: bool = False, mlp_bias: bool = False) -> DecoderSpec:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        embedding_size=config.hidden_size,
        layers=config.num_hidden_layers,
        attention=AttentionSpec(
            heads=heads,
            kv_heads=config.num_key_value_heads or heads,
            head_dim=head_dim,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            scale=head_dim**-0.5,
            windows=windows(config),
            qk_norm=qk_norm,
        ),
        position=rotary(config, head_dim),
        norm=NormSpec("rms", config.rms_norm_eps),
        mlp=MLPSpec(config.intermediate_size, activation(config.hidden_act), gated=True, bias=mlp_bias),
        final_norm=True,
        tied=config.tie_word_embeddings,
    )


def _llama(config) -> DecoderSpec:
    bias = config.attention_bias
    return _spec(config, qkv_bias=bias, out_bias=bias, mlp_bias=config.mlp_bias)


def _mistral(config) -> DecoderSpec:
    return _spec(config, qkv_bias=False, out_bias=False)


def _qwen2(config) -> DecoderSpec:
    return _spec(config, qkv_bias=True, out_bias=False)


def _qwen3(config) -> DecoderSpec:
    bias = config.attention_bias
    return _spec(config, qkv_bias=bias, out_bias=bias, qk_norm=True)


def _modules(spec: DecoderSpec) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "embedding": ("embed_tokens.weight",),
        "final_norm": ("norm",),
        "head": ("lm_head.weight",),
    }
    for i in range(spec.layers):
        theirs, ours = f"layers.{i}", f"blocks.{i}"
        attention = f"{theirs}.self_attn"
        table |= {
            f"{ours}.attention_norm": (f"{theirs}.input_layernorm",),
            f"{ours}.attention.qkv": tuple(f"{attention}.{n}_proj" for n in "qkv"),
            f"{ours}.attention.q_norm": (f"{attention}.q_norm",),
            f"{ours}.attention.k_norm": (f"{attention}.k_norm",),
            f"{ours}.attention.out": (f"{attention}.o_proj",),
            f"{ours}.mlp_norm": (f"{theirs}.post_attention_layernorm",),
            f"{ours}.mlp.up": (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"),
            f"{ours}.mlp.down": (f"{theirs}.mlp.down_proj",),
        }
    return table


_SIZES = (
    "num_hidden_layers",
    "vocab_size*hidden_size",
    "hidden_size*intermediate_size",
    "num_attention_heads",
    "max_position_embeddings",
    "?num_key_value_heads",
    "?num_attention_heads*head_dim*hidden_size",
)
LLAMA = Family(_llama, _modules, _SIZES, "model.")
MISTRAL = Family(_mistral, _modules, _SIZES, "model.")
QWEN2 = Family(_qwen2, _modules, _SIZES, "model.")
QWEN3 = Family(_qwen3, _modules, _SIZES, "model.")
