"""Llama 2 and 3, SmolLM, Mistral, Qwen2 and Qwen3: one layout, a few switches."""

from keras_xla.models.convert.common import Family, activation, embedding_of, sliding
from keras_xla.models.convert.config_keys import flag, generation_keys, list_of, number, or_null, text, whole
from keras_xla.models.convert.rotary import ROTARY_KEYS, rotary
from keras_xla.models.convert.shared_keys import CACHE_WINDOWS, FULL_ATTENTION
from keras_xla.models.spec import AttentionSpec, DecoderSpec, MLPSpec, NormSpec

_COMMON = {
    "vocab_size": whole(32000),
    "hidden_size": whole(4096),
    "intermediate_size": whole(11008),
    "num_hidden_layers": whole(32),
    "num_attention_heads": whole(32),
    "num_key_value_heads": whole(None),
    "head_dim": whole(None),
    "hidden_act": text("silu"),
    "max_position_embeddings": whole(2048),
    "rms_norm_eps": number(1e-6, zero=True),
    "tie_word_embeddings": flag(False),
    "sliding_window": whole(None, least=0),  # 0 is none
    "layer_types": list_of(text("")),
    **ROTARY_KEYS,
    **generation_keys(eos=2),
}
_LLAMA = {
    **_COMMON,
    "attention_bias": flag(False),
    "mlp_bias": flag(False),
    "attention_chunk_size": whole(None, least=0),
}
_MISTRAL = {
    **_COMMON,
    "intermediate_size": whole(14336),
    "num_key_value_heads": or_null(whole(8)),
    "max_position_embeddings": whole(131072),
    "sliding_window": or_null(whole(4096, least=0)),
}
_QWEN2 = {
    **_COMMON,
    "vocab_size": whole(151936),
    "intermediate_size": whole(22016),
    "num_key_value_heads": or_null(whole(32)),
    "max_position_embeddings": whole(32768),
    "use_sliding_window": flag(False),
    "sliding_window": or_null(whole(4096, least=0)),
    "max_window_layers": whole(28, least=0),
    **generation_keys(eos=None),
}
_FULL = *FULL_ATTENTION, "chunked_attention"  # transformers' Llama has no other
_QWEN3 = {**_QWEN2, "head_dim": whole(128), "attention_bias": flag(False)}


def _spec(
    config,
    *,
    qkv_bias: bool,
    out_bias: bool,
    windows: tuple[int | None, ...],
    qk_norm: bool = False,
    mlp_bias: bool = False,
) -> DecoderSpec:
    heads = config.num_attention_heads
    head_dim = config.head_dim or config.hidden_size // heads
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
            windows=windows,
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
    spec = _spec(
        config, qkv_bias=bias, out_bias=bias, windows=sliding(config, None, full=_FULL), mlp_bias=config.mlp_bias
    )
    for name, kind in CACHE_WINDOWS.items():
        window = getattr(config, name)
        heeded = config.layer_types is None or kind in config.layer_types
        if window and heeded and window < spec.position.max_positions:
            raise ValueError(
                f"it has {name}={window}, which transformers' Llama heeds in its cache, and not in its attention. "
                'Remove the key; or, for a model that was trained with the window, set model_type="mistral"'
            )
    return spec


def _mistral(config) -> DecoderSpec:
    return _spec(config, qkv_bias=False, out_bias=False, windows=sliding(config, config.sliding_window))


def _qwen2(config) -> DecoderSpec:
    return _spec(config, qkv_bias=True, out_bias=False, windows=_qwen_windows(config))


def _qwen3(config) -> DecoderSpec:
    bias = config.attention_bias
    return _spec(config, qkv_bias=bias, out_bias=bias, windows=_qwen_windows(config), qk_norm=True)


def _qwen_windows(config) -> tuple[int | None, ...]:
    window = config.sliding_window if config.use_sliding_window else None
    return sliding(config, window, first=config.max_window_layers)


def _modules(spec: DecoderSpec) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {
        "embedding": embedding_of(spec, "embed_tokens.weight"),
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
    "?max_position_embeddings",
    "?num_key_value_heads",
    "?num_attention_heads*head_dim*hidden_size",
)
LLAMA = Family(_LLAMA, _llama, _modules, _SIZES, "model.")
MISTRAL = Family(_MISTRAL, _mistral, _modules, _SIZES, "model.")
QWEN2 = Family(_QWEN2, _qwen2, _modules, _SIZES, "model.")
QWEN3 = Family(_QWEN3, _qwen3, _modules, _SIZES, "model.")
