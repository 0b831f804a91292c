"""BART (post-norm), mBART (pre-norm): positions offset by 2, a norm on the embeddings, a bias on the logits."""

from typing import Any, Literal

from keras_xla.models.convert.common import Family, activation
from keras_xla.models.convert.config_keys import ConfigKey, flag, generation_keys, or_null, text, token_ids, whole
from keras_xla.models.spec import (
    AttentionSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    LearnedPositions,
    MLPSpec,
    NormSpec,
    TextSource,
)


def stack_keys(d_model: int, layers: int, heads: int, ffn_dim: int) -> dict[str, ConfigKey]:
    """The keys that describe the stacks of BART and its relatives, both of the same size by default."""
    return {
        "d_model": whole(d_model, "hidden_size"),
        "encoder_layers": whole(layers, "num_hidden_layers"),
        "encoder_attention_heads": whole(heads, "num_attention_heads"),
        "encoder_ffn_dim": whole(ffn_dim),
        "decoder_layers": whole(layers),
        "decoder_attention_heads": whole(heads),
        "decoder_ffn_dim": whole(ffn_dim),
        "activation_function": text("gelu"),
        "tie_word_embeddings": flag(True),
    }


_MBART = {
    "vocab_size": whole(50265),
    "max_position_embeddings": whole(1024),
    "scale_embedding": flag(False),
    "forced_eos_token_id": token_ids(2),
    **stack_keys(1024, layers=12, heads=16, ffn_dim=4096),
    **generation_keys(eos=2, pad=1, encoder=True),
}
_BART = {**_MBART, "scale_embedding": or_null(flag(False)), **generation_keys(eos=2, pad=1, start=2, encoder=True)}


def stack(config, side: Literal["encoder", "decoder"], norm: NormSpec) -> dict:
    """What the specs of encoder and decoder have in common in BART and its relatives (Marian, Whisper)."""
    heads = getattr(config, f"{side}_attention_heads")
    head_dim = config.d_model // heads
    attention = AttentionSpec(heads, heads, head_dim, qkv_bias=True, out_bias=True, scale=head_dim**-0.5)
    size = getattr(config, f"{side}_ffn_dim")
    fields = dict(
        hidden_size=config.d_model,
        layers=getattr(config, f"{side}_layers"),
        attention=attention,
        norm=norm,
        mlp=MLPSpec(size, activation(config.activation_function), gated=False, bias=True),
        final_norm=norm.placement == "pre",
    )
    if side == "encoder":
        return fields
    return {**fields, "cross_attention": attention, "embedding_size": config.d_model}


def block_modules(ours: str, theirs: str) -> dict[str, tuple[str, ...]]:
    """The names of a block's weights, cross-attention aside, in BART and its relatives (OPT too)."""
    return {
        f"{ours}.attention_norm": (f"{theirs}.self_attn_layer_norm",),
        f"{ours}.attention.qkv": tuple(f"{theirs}.self_attn.{n}_proj" for n in "qkv"),
        f"{ours}.attention.out": (f"{theirs}.self_attn.out_proj",),
        f"{ours}.mlp_norm": (f"{theirs}.final_layer_norm",),
        f"{ours}.mlp.up": (f"{theirs}.fc1",),
        f"{ours}.mlp.down": (f"{theirs}.fc2",),
    }


def stack_modules(side: Literal["encoder", "decoder"], layers: int) -> dict[str, tuple[str, ...]]:
    """The names of a stack's weights in BART and its relatives, embeddings and positions aside."""
    table: dict[str, tuple[str, ...]] = {
        f"{side}.embedding_norm": (f"{side}.layernorm_embedding",),
        f"{side}.final_norm": (f"{side}.layer_norm",),
    }
    for i in range(layers):
        ours, theirs = f"{side}.blocks.{i}", f"{side}.layers.{i}"
        table |= block_modules(ours, theirs)
        if side == "decoder":
            table |= {
                f"{ours}.cross_norm": (f"{theirs}.encoder_attn_layer_norm",),
                f"{ours}.cross.q": (f"{theirs}.encoder_attn.q_proj",),
                f"{ours}.cross.kv": tuple(f"{theirs}.encoder_attn.{n}_proj" for n in "kv"),
                f"{ours}.cross.out": (f"{theirs}.encoder_attn.out_proj",),
            }
    return table


def embeddings(spec: EncoderDecoderSpec, head: str = "lm_head.weight") -> dict[str, tuple[str, ...]]:
    """The names of the token embeddings and the head: one table, or one for each side."""
    encoder, decoder = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    one = "=".join(["shared.weight", decoder, encoder, *[head] * spec.decoder.tied])
    own = "=".join([decoder, *[head] * spec.decoder.tied])
    source: Any = spec.encoder.source  # a `TextSource`
    return {
        "encoder.embedding": (f"{encoder}|shared.weight",),
        "decoder.embedding": (one if source.shared else f"{own}|shared.weight",),
        "decoder.head": (head,),
    }


def _spec(config, placement: Literal["pre", "post"]) -> EncoderDecoderSpec:
    norm = NormSpec("layer", 1e-5, placement)
    embedding: dict[str, Any] = dict(
        position=LearnedPositions(config.max_position_embeddings, offset=2),
        embedding_scale=config.d_model**0.5 if config.scale_embedding else 1.0,
        embedding_norm=True,
    )
    source = TextSource(config.vocab_size, shared=config.tie_word_embeddings)
    return EncoderDecoderSpec(
        EncoderSpec(source=source, **stack(config, "encoder", norm), **embedding),
        DecoderSpec(
            vocab_size=config.vocab_size,
            tied=config.tie_word_embeddings,
            head_bias=True,
            **stack(config, "decoder", norm),
            **embedding,
        ),
    )


def _bart(config) -> EncoderDecoderSpec:
    return _spec(config, "post")


def _mbart(config) -> EncoderDecoderSpec:
    return _spec(config, "pre")


def modules(spec: EncoderDecoderSpec) -> dict[str, tuple[str, ...]]:
    """Ours, by the names of those in a checkpoint that they come from; Marian has the same."""
    return {
        **embeddings(spec),
        "decoder.head_bias": ("final_logits_bias",),
        "encoder.positions": ("encoder.embed_positions",),
        "decoder.positions": ("decoder.embed_positions",),
        **stack_modules("encoder", spec.encoder.layers),
        **stack_modules("decoder", spec.decoder.layers),
    }


_IGNORED = r"^(en|de)coder\.version$"
SIZES = (
    "encoder_layers",
    "decoder_layers",
    "vocab_size*d_model",
    "encoder_ffn_dim*d_model",
    "decoder_ffn_dim*d_model",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
_WITH_POSITIONS = (*SIZES, "max_position_embeddings*d_model")
BART = Family(_BART, _bart, modules, _WITH_POSITIONS, "model.", ignored=_IGNORED, optional=r"^final_logits_bias$")
MBART = Family(_MBART, _mbart, modules, _WITH_POSITIONS, "model.", ignored=_IGNORED, optional=r"^final_logits_bias$")
