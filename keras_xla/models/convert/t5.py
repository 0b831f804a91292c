"""T5 (v1.0), T5 v1.1, flan-T5 and mT5: relative positions, RMS norms, no biases and no scale on the scores."""

from keras_xla.models.convert.common import Family, activation
from keras_xla.models.convert.config_keys import MOST_COMPUTED, flag, generation_keys, number, or_null, text, whole
from keras_xla.models.spec import (
    AttentionSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    EncoderSpec,
    MLPSpec,
    NormSpec,
    RelativePositions,
    TextSource,
)

_T5 = {
    "vocab_size": whole(32128),
    "d_model": whole(512, "hidden_size"),
    "d_kv": whole(64, "head_dim"),
    "d_ff": whole(2048),
    "num_layers": whole(6, "num_hidden_layers"),
    "num_decoder_layers": whole(None),
    "num_heads": whole(8, "num_attention_heads"),
    "relative_attention_num_buckets": whole(32),
    "relative_attention_max_distance": whole(128, most=MOST_COMPUTED),
    "layer_norm_epsilon": number(1e-6, zero=True),
    "feed_forward_proj": text("relu"),
    "is_gated_act": flag(None),
    "dense_act_fn": text(None),
    "tie_word_embeddings": or_null(flag(True)),
    "scale_decoder_outputs": flag(None),
    **generation_keys(eos=1, pad=0, encoder=True),
}
_MT5 = {
    **_T5,
    "vocab_size": whole(250112),
    "d_ff": whole(1024),
    "num_layers": whole(8, "num_hidden_layers"),
    "num_heads": whole(6, "num_attention_heads"),
    "feed_forward_proj": text("gated-gelu"),
    **generation_keys(eos=1, pad=0, start=0, encoder=True),
}


def _spec(config, head_scale: float) -> EncoderDecoderSpec:
    buckets, farthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
    if farthest <= buckets // 2:  # each of which is of one distance
        raise ValueError(
            f"relative_attention_max_distance={farthest} is not supported here; expected more than {buckets // 2}, "
            f"half of relative_attention_num_buckets={buckets}"
        )
    attention = AttentionSpec(
        heads=config.num_heads,
        kv_heads=config.num_heads,
        head_dim=config.d_kv,
        qkv_bias=False,
        out_bias=False,
        scale=1.0,
    )
    stack = dict(
        hidden_size=config.d_model,
        attention=attention,
        position=RelativePositions(buckets, farthest),
        norm=NormSpec("rms", config.layer_norm_epsilon),
        mlp=_mlp(config),
        final_norm=True,
    )
    return EncoderDecoderSpec(
        EncoderSpec(layers=config.num_layers, source=TextSource(config.vocab_size, shared=True), **stack),
        DecoderSpec(
            layers=config.num_decoder_layers or config.num_layers,
            vocab_size=config.vocab_size,
            embedding_size=config.d_model,
            tied=True,  # whatever the config says: see `untied`
            head_scale=head_scale,
            cross_attention=attention,
            **stack,
        ),
    )


def _mlp(config) -> MLPSpec:
    gate, _, name = config.feed_forward_proj.rpartition("-")
    if gate not in ("", "gated"):
        raise ValueError(
            f"feed_forward_proj={config.feed_forward_proj!r} is not supported here; expected the name of an "
            "activation, or gated- and such a name"
        )
    name = "gelu_new" if gate and name == "gelu" else name
    # Both follow from feed_forward_proj; a config that was changed by hand says them itself.
    gated = bool(gate) if config.is_gated_act is None else config.is_gated_act
    # Sums of T5's outgrow float16; in PyTorch `wo` stays float32, too (`_keep_in_fp32_modules`).
    return MLPSpec(config.d_ff, activation(config.dense_act_fn or name), gated=gated, bias=False, wide=True)


def _t5(config) -> EncoderDecoderSpec:
    # Configs say by tie_word_embeddings whether T5 scales; those that transformers 5 wrote, by a key of its own.
    tied = config.tie_word_embeddings is not False
    scaled = tied if config.scale_decoder_outputs is None else config.scale_decoder_outputs
    return _spec(config, config.d_model**-0.5 if scaled else 1.0)


def _mt5(config) -> EncoderDecoderSpec:
    # PyTorch's mT5 never scales, and writes no such key; TensorFlow's does where it is tied.
    return _spec(config, config.d_model**-0.5 if config.scale_decoder_outputs else 1.0)


def _modules(spec: EncoderDecoderSpec) -> dict[str, tuple[str, ...]]:
    copies = ("shared", "decoder.embed_tokens", "encoder.embed_tokens", *["lm_head"] * spec.decoder.tied)
    table: dict[str, tuple[str, ...]] = {
        "decoder.embedding": ("=".join(f"{name}.weight" for name in copies),),
        "decoder.head": ("lm_head.weight",),
    }
    for side, stack, sublayers in (("encoder", spec.encoder, 2), ("decoder", spec.decoder, 3)):
        table |= {
            f"{side}.positions": (f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",),
            f"{side}.final_norm": (f"{side}.final_layer_norm",),
        }
        for i in range(stack.layers):
            ours, theirs = f"{side}.blocks.{i}", f"{side}.block.{i}.layer"
            own, other, mlp = f"{theirs}.0", f"{theirs}.1", f"{theirs}.{sublayers - 1}"
            up = ("wi_0", "wi_1") if stack.mlp.gated else ("wi",)
            table |= {
                f"{ours}.attention_norm": (f"{own}.layer_norm",),
                f"{ours}.attention.qkv": tuple(f"{own}.SelfAttention.{n}" for n in "qkv"),
                f"{ours}.attention.out": (f"{own}.SelfAttention.o",),
                f"{ours}.mlp_norm": (f"{mlp}.layer_norm",),
                f"{ours}.mlp.up": tuple(f"{mlp}.DenseReluDense.{n}" for n in up),
                f"{ours}.mlp.down": (f"{mlp}.DenseReluDense.wo",),
            }
            if side == "decoder":
                table |= {
                    f"{ours}.cross_norm": (f"{other}.layer_norm",),
                    f"{ours}.cross.q": (f"{other}.EncDecAttention.q",),
                    f"{ours}.cross.kv": tuple(f"{other}.EncDecAttention.{n}" for n in "kv"),
                    f"{ours}.cross.out": (f"{other}.EncDecAttention.o",),
                }
    return table


# Early checkpoints hold a table for the cross-attention too, which was never used.
_UNUSED = r"EncDecAttention\.relative_attention_bias\.weight$"
_SIZES = ("num_layers", "?num_decoder_layers", "vocab_size*d_model", "d_model*d_ff", "num_heads*d_kv*d_model")
T5 = Family(_T5, _t5, _modules, _SIZES, "transformer.", ignored=_UNUSED)
MT5 = Family(_MT5, _mt5, _modules, _SIZES, "transformer.", ignored=_UNUSED)
