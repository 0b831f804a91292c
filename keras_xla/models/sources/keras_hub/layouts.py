"""How each class of KerasHub tasks becomes one of our models: its config, and the names of its weights."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from keras import ops

from keras_xla.models.convert.bart import BART
from keras_xla.models.convert.common import Family
from keras_xla.models.convert.gpt2 import GPT2
from keras_xla.models.convert.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from keras_xla.models.convert.opt import OPT
from keras_xla.models.convert.t5 import T5
from keras_xla.models.layers.basic import ACTIVATIONS
from keras_xla.models.spec import DecoderSpec, EncoderDecoderSpec, LearnedPositions, ModelSpec

_NO_LIMIT = 2**30  # rotary positions go on forever, and KerasHub sets no end to them


@dataclass(frozen=True)
class Layout:
    """How one class of tasks becomes a model of ours.

    Attributes:
        backbone: The class of its backbone.
        kind: `model_type` of the Hugging Face config that describes it.
        family: From that config to a spec, and from checkpoint modules to ours.
        config: From the backbone to the other values of that config.
        names: From the backbone to its weights by their names in a checkpoint; what it does not know it leaves out.
        adjust: From the spec and the backbone to a spec, where KerasHub differs from Hugging Face.
    """

    backbone: str
    kind: str
    family: Family
    config: Callable[[Any], dict]
    names: Callable[[Any], dict[str, Any]]
    adjust: Callable[[Any, Any], ModelSpec] = lambda spec, backbone: spec


def _by_path(modules: Mapping[str, str], backbone: Any) -> dict[str, Any]:
    """Weights whose layer's path ends in one of `modules`, where `{}` is the number of the block."""
    found = {}
    for variable in backbone.weights:
        path, _, leaf = variable.path.rpartition("/")
        block = re.search(r"(?:^|/)(transformer\w*_layer)_(\d+)/(.+)$", path)
        place = f"{block[1]}/{block[3]}" if block else path.rpartition("/")[2]
        if leaf == "reverse_embeddings":
            found["lm_head.weight"] = variable
        elif place in modules and leaf in _LEAVES:
            found[f"{modules[place].format(block and block[2])}.{_LEAVES[leaf]}"] = variable
    return found


_LEAVES = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "scale": "weight",
    "bias": "bias",
    "beta": "bias",
}


def _gpt2_config(backbone: Any) -> dict:
    return {
        "vocab_size": backbone.vocabulary_size,
        "n_embd": backbone.hidden_dim,
        "n_layer": backbone.num_layers,
        "n_head": backbone.num_heads,
        "n_inner": backbone.intermediate_dim,
        "n_positions": backbone.max_sequence_length,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _gpt2_modules(spec: DecoderSpec) -> dict[str, tuple[str, ...]]:
    # A checkpoint of GPT-2 has queries, keys and values in one matrix; here they are three.
    apart = {
        f"blocks.{i}.attention.qkv": tuple(f"h.{i}.attn.{name}" for name in ("query", "key", "value"))
        for i in range(spec.layers)
    }
    return {**GPT2.modules(spec), **apart}


def _opt_config(backbone: Any) -> dict:
    return {
        "vocab_size": backbone.vocabulary_size,
        "hidden_size": backbone.hidden_dim,
        "word_embed_proj_dim": backbone.hidden_dim,
        "num_hidden_layers": backbone.num_layers,
        "num_attention_heads": backbone.num_heads,
        "ffn_dim": backbone.intermediate_dim,
        "max_position_embeddings": backbone.max_sequence_length,
    }


def _llama_config(backbone: Any, **more: Any) -> dict:
    linear = getattr(backbone, "rope_scaling_factor", 1.0)
    kind = {"rope_type": "linear", "factor": linear} if linear != 1 else {"rope_type": "default"}
    return {
        "vocab_size": backbone.vocabulary_size,
        "hidden_size": backbone.hidden_dim,
        "num_hidden_layers": backbone.num_layers,
        "num_attention_heads": backbone.num_query_heads,
        "num_key_value_heads": backbone.num_key_value_heads,
        "head_dim": getattr(backbone, "head_dim", None) or backbone.hidden_dim // backbone.num_query_heads,
        "intermediate_size": backbone.intermediate_dim,
        "rms_norm_eps": backbone.layer_norm_epsilon,
        "rope_parameters": {"rope_theta": float(backbone.rope_max_wavelength), **kind},
        "max_position_embeddings": _NO_LIMIT,
        "tie_word_embeddings": backbone.token_embedding.tie_weights,
        **more,
    }


def _llama3_config(backbone: Any) -> dict:
    config = _llama_config(backbone)  # rope_position_scaling_factor is an argument that KerasHub does not use
    if backbone.rope_low_freq_factor is not None:
        config["rope_parameters"] |= {
            "rope_type": "llama3",
            "factor": backbone.rope_frequency_adjustment_factor,
            "low_freq_factor": backbone.rope_low_freq_factor,
            "high_freq_factor": backbone.rope_high_freq_factor,
            "original_max_position_embeddings": backbone.rope_pretraining_sequence_length,
        }
    return config


def _mistral_config(backbone: Any) -> dict:
    return _llama_config(backbone, sliding_window=backbone.sliding_window)


def _qwen2_config(backbone: Any) -> dict:
    return _qwen_config(backbone, backbone.sliding_window_size if backbone.use_sliding_window_attention else None)


def _qwen3_config(backbone: Any) -> dict:
    return _qwen_config(backbone, backbone.sliding_window_size)


def _qwen_config(backbone: Any, window: int | None) -> dict:
    return _llama_config(backbone, use_sliding_window=bool(window), sliding_window=window or None, max_window_layers=0)


def _bart_config(backbone: Any) -> dict:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": backbone.num_layers,
            "attention_heads": backbone.num_heads,
            "ffn_dim": backbone.intermediate_dim,
        }.items()
    }
    return {
        "vocab_size": backbone.vocabulary_size,
        "d_model": backbone.hidden_dim,
        "max_position_embeddings": backbone.max_sequence_length,
        **sides,
    }


def _t5_config(backbone: Any) -> dict:
    return {
        "vocab_size": backbone.vocabulary_size,
        "d_model": backbone.hidden_dim,
        "d_kv": backbone.key_value_dim or backbone.hidden_dim // backbone.num_heads,
        "d_ff": backbone.intermediate_dim,
        "num_layers": backbone.num_layers,
        "num_decoder_layers": backbone.num_layers,
        "num_heads": backbone.num_heads,
        "layer_norm_epsilon": backbone.layer_norm_epsilon,
        "feed_forward_proj": "gated-relu" if backbone.use_gated_activation else "relu",
    }


def _t5_names(backbone: Any) -> dict[str, Any]:
    """By attributes: two of its tables have one path, and its norms are numbered as they were made."""
    table = backbone.token_embedding
    layers = {"shared.weight": table}
    for side in ("encoder", "decoder"):
        layers[f"{side}.final_layer_norm.weight"] = getattr(backbone, f"{side}_layer_norm")
        for i, block in enumerate(getattr(backbone, f"{side}_transformer_layers")):
            at, attentions = f"{side}.block.{i}.layer", ["SelfAttention", "EncDecAttention"][: 1 + (side == "decoder")]
            for j, name in enumerate(attentions):
                kind = ("self_attention", "cross_attention")[j]
                layers[f"{at}.{j}.layer_norm.weight"] = getattr(block, f"{kind}_layer_norm")
                for ours, theirs in {"q": "query", "k": "key", "v": "value", "o": "output"}.items():
                    layers[f"{at}.{j}.{name}.{ours}.weight"] = getattr(getattr(block, kind), f"{theirs}_projector")
            mlp, gated = f"{at}.{len(attentions)}", block.use_gated_activation
            layers[f"{mlp}.layer_norm.weight"] = block.layer_norm
            layers[f"{mlp}.DenseReluDense.{'wi_0' if gated else 'wi'}.weight"] = block.input_projector
            if gated:
                layers[f"{mlp}.DenseReluDense.wi_1.weight"] = block.gate_projector
            layers[f"{mlp}.DenseReluDense.wo.weight"] = block.output_projector
    found = {name: layer.weights[0] for name, layer in layers.items() if layer.weights}
    if not table.tie_weights:
        found["lm_head.weight"] = table.reverse_embeddings
    for side in ("encoder", "decoder"):
        first = getattr(backbone, f"{side}_transformer_layers")[0].self_attention
        found[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = first.relative_attention_bias
    return found


def _no_offset(spec: DecoderSpec | EncoderDecoderSpec, backbone: Any) -> ModelSpec:
    """The two unused rows in front of a checkpoint's positions are left out in KerasHub."""
    position = LearnedPositions(backbone.max_sequence_length)
    if isinstance(spec, DecoderSpec):
        return dataclasses.replace(spec, position=position)
    encoder = dataclasses.replace(spec.encoder, position=position)
    return EncoderDecoderSpec(encoder, dataclasses.replace(spec.decoder, position=position))


def _t5_spec(spec: EncoderDecoderSpec, backbone: Any) -> EncoderDecoderSpec:
    """The activation may be any function, and a head of its own is one whatever its values."""
    mlp = dataclasses.replace(spec.encoder.mlp, activation=_known_activation(backbone.activation))
    tied = backbone.token_embedding.tie_weights
    scale = backbone.hidden_dim**-0.5 if tied else 1.0
    return EncoderDecoderSpec(
        dataclasses.replace(spec.encoder, mlp=mlp),
        dataclasses.replace(spec.decoder, mlp=mlp, tied=tied, head_scale=scale),
    )


def _known_activation(function: Callable) -> str:
    """The name of an activation function, found by a trial."""
    x = ops.linspace(-24.0, 24.0, 193)  # some are cut off far from 0
    for name, known in ACTIVATIONS.items():
        if np.allclose(ops.convert_to_numpy(function(x)), ops.convert_to_numpy(known(x)), atol=1e-6):
            return name
    raise ValueError(
        f"Received a backbone with the activation {getattr(function, '__name__', function)!r}; expected one of "
        f"{', '.join(ACTIVATIONS)}."
    )


def _blocks(table: Mapping[str, str], stack: str, start: str) -> dict[str, str]:
    return {f"{stack}/{theirs}": f"{start}.{{}}.{ours}" for theirs, ours in table.items()}


_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_output": "out_proj"}
_POST_ATTENTION = {
    "self_attention_layer_norm": "self_attn_layer_norm",
    "feedforward_layer_norm": "final_layer_norm",
    "feedforward_intermediate_dense": "fc1",
    "feedforward_output_dense": "fc2",
}
_BART_ENCODER = {
    **_POST_ATTENTION,
    **{f"self_attention_layer/{theirs}": f"self_attn.{ours}" for theirs, ours in _PROJECTIONS.items()},
}
_OPT_BLOCK = {
    **_POST_ATTENTION,
    **{f"self_attention/{theirs}": f"self_attn.{ours}" for theirs, ours in _PROJECTIONS.items()},
}
_BART_DECODER = {
    **_OPT_BLOCK,
    "cross_attention_layer_norm": "encoder_attn_layer_norm",
    **{f"cross_attention/{theirs}": f"encoder_attn.{ours}" for theirs, ours in _PROJECTIONS.items()},
}
_BART_MODULES = {
    "token_embedding": "shared",
    "encoder_position_embedding": "encoder.embed_positions",
    "encoder_embeddings_layer_norm": "encoder.layernorm_embedding",
    "decoder_position_embedding": "decoder.embed_positions",
    "decoder_embeddings_layer_norm": "decoder.layernorm_embedding",
    **_blocks(_BART_ENCODER, "transformer_encoder_layer", "encoder.layers"),
    **_blocks(_BART_DECODER, "transformer_decoder_layer", "decoder.layers"),
}
_OPT_MODULES = {
    "token_embedding": "decoder.embed_tokens",
    "position_embedding": "decoder.embed_positions",
    "layer_norm": "decoder.final_layer_norm",
    **_blocks(_OPT_BLOCK, "transformer_layer", "decoder.layers"),
}
_GPT2_BLOCK = {
    "self_attention_layer_norm": "ln_1",
    "self_attention/query": "attn.query",
    "self_attention/key": "attn.key",
    "self_attention/value": "attn.value",
    "self_attention/attention_output": "attn.c_proj",
    "feedforward_layer_norm": "ln_2",
    "feedforward_intermediate_dense": "mlp.c_fc",
    "feedforward_output_dense": "mlp.c_proj",
}
_GPT2_MODULES = {
    "token_embedding": "wte",
    "position_embedding": "wpe",
    "layer_norm": "ln_f",
    **_blocks(_GPT2_BLOCK, "transformer_layer", "h"),
}
_LLAMA_BLOCK = {
    "self_attention_layernorm": "input_layernorm",
    "self_attention/query": "self_attn.q_proj",
    "self_attention/key": "self_attn.k_proj",
    "self_attention/value": "self_attn.v_proj",
    "self_attention/query_dense_layernorm": "self_attn.q_norm",
    "self_attention/key_dense_layernorm": "self_attn.k_norm",
    "self_attention/attention_output": "self_attn.o_proj",
    "feedforward_layernorm": "post_attention_layernorm",
    "feedforward_intermediate_dense": "mlp.up_proj",
    "feedforward_gate_dense": "mlp.gate_proj",
    "feedforward_output_dense": "mlp.down_proj",
}
_LLAMA_MODULES = {
    "token_embedding": "embed_tokens",
    "sequence_output_layernorm": "norm",
    **_blocks(_LLAMA_BLOCK, "transformer_layer", "layers"),
}
_GPT2 = dataclasses.replace(GPT2, modules=_gpt2_modules, transposed=r"(?!)")
_LLAMA_NAMES = partial(_by_path, _LLAMA_MODULES)

LAYOUTS: dict[str, Layout] = {
    "GPT2CausalLM": Layout("GPT2Backbone", "gpt2", _GPT2, _gpt2_config, partial(_by_path, _GPT2_MODULES)),
    "OPTCausalLM": Layout("OPTBackbone", "opt", OPT, _opt_config, partial(_by_path, _OPT_MODULES), _no_offset),
    "LlamaCausalLM": Layout("LlamaBackbone", "llama", LLAMA, _llama3_config, _LLAMA_NAMES),
    "Llama3CausalLM": Layout("Llama3Backbone", "llama", LLAMA, _llama3_config, _LLAMA_NAMES),
    "MistralCausalLM": Layout("MistralBackbone", "mistral", MISTRAL, _mistral_config, _LLAMA_NAMES),
    "QwenCausalLM": Layout("QwenBackbone", "qwen2", QWEN2, _qwen2_config, _LLAMA_NAMES),
    "Qwen3CausalLM": Layout("Qwen3Backbone", "qwen3", QWEN3, _qwen3_config, _LLAMA_NAMES),
    "BartSeq2SeqLM": Layout("BartBackbone", "bart", BART, _bart_config, partial(_by_path, _BART_MODULES), _no_offset),
    "T5Seq2SeqLM": Layout("T5Backbone", "t5", T5, _t5_config, _t5_names, _t5_spec),
}
"""By the name of the task's class."""
