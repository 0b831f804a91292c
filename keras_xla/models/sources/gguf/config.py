"""From a GGUF file's metadata to what Hugging Face keeps in config.json and generation_config.json."""

import math
import re
from typing import Any

import numpy as np

from keras_xla.models.sources.gguf.fields import Fields, shown
from keras_xla.models.sources.gguf.header import GGUFHeader

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_FACTORS = "rope_freqs.weight"
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens that no text is cut into by itself
# What ends a text or a turn whatever else a file names: most of what does in llama.cpp (`llama-vocab.cpp`).
_ENDS = frozenset(
    {
        *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"),
        *("<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]"),
        *("[EOS]", "<eos>", "</s>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|repo_name|>"),
        *("<|fim_repo|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    }
)
# What llama.cpp draws with unless it is told otherwise: its converter takes it from `generation_config.json`.
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
# What else it does then, and what it has when it is off; the layer warns of it.
_NOT_KNOWN = {"xtc_probability": 0, "mirostat": 0, "penalty_repeat": 1}

_SCALING_KEYS = {
    "type",
    "factor",
    "original_context_length",
    "finetuned",
    "attn_factor",
    "yarn_attn_factor",
    "yarn_ext_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
}


def token_ids(fields: Fields) -> dict[str, int]:
    """The ids of the special tokens a file names: `bos`, `eos`, `unknown`, `padding`, `eot`, `eom`."""
    # A sentencepiece vocabulary without ids means Llama's; llama.cpp reads it so too.
    ids = {"bos": 1, "eos": 2, "unknown": 0} if fields.text("tokenizer.ggml.model", None) == "llama" else {}
    for name in ("bos", "eos", "unknown", "padding", "eot", "eom"):
        if (value := fields.whole(f"tokenizer.ggml.{name}_token_id", None)) is not None:
            ids[name] = value
    return ids


def gguf_config(header: GGUFHeader) -> dict[str, Any]:
    """The file's hyper-parameters under the names of a Hugging Face config.

    Llama 3's scaling of its rotary frequencies, a tensor in GGUF, becomes `rope_freq_factors`.
    """
    fields, tensors = header.fields, header.tensors
    if (parts := fields.whole("split.count", 1)) > 1:
        raise ValueError(
            f"{header.path} is one of {parts} parts of a model; expected a single file. "
            "Join the parts with `llama-gguf-split --merge FIRST_PART OUT`."
        )
    architecture = fields.text("general.architecture", None)
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"{header.path}: received the GGUF architecture {shown(architecture)}; expected one of "
            f"{', '.join(ARCHITECTURES)}. Give the model's safetensors folder instead."
        )
    _refuse_unreadable(header, architecture)
    if not fields.flag(f"{architecture}.attention.causal", True):
        raise ValueError(
            f"{header.path}: received {architecture}.attention.causal=False, of a model that makes embeddings, where "
            "each token sees those behind it; expected a model that generates text."
        )
    if "token_embd.weight" not in tensors:
        raise ValueError(
            f"{header.path} has no tensor 'token_embd.weight': it holds no language model. Download it again."
        )
    heads = fields.whole(f"{architecture}.attention.head_count", least=1)
    hidden = fields.whole(f"{architecture}.embedding_length", least=1)
    head_dim = fields.whole(f"{architecture}.attention.key_length", hidden // heads, least=1)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := fields.whole(f"{architecture}.{key}", head_dim)) != head_dim:
            raise ValueError(
                f"{header.path}: '{architecture}.{key}' is {other}; expected the head size {head_dim}. "
                "Use the safetensors folder of this model."
            )
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": fields.whole(f"{architecture}.feed_forward_length", least=1),
        "num_hidden_layers": fields.whole(f"{architecture}.block_count", least=1),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.whole(f"{architecture}.attention.head_count_kv", heads, least=1),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _decimal(fields.number(f"{architecture}.attention.layer_norm_rms_epsilon", least=0)),
        "rope_theta": _decimal(fields.number(f"{architecture}.rope.freq_base", 10000.0, least=0)),
        "max_position_embeddings": fields.whole(f"{architecture}.context_length", least=1),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if architecture != "qwen2":  # whose biases are not an option
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if architecture == "llama":
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
        if window := fields.whole("llama.attention.sliding_window", 0):
            # Hugging Face's Llama has no window; its Mistral is the same model with one.
            config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
            config["sliding_window"] = window
    if scaling := _rope_scaling(header, architecture):
        config["rope_scaling"] = scaling
    if ROPE_FACTORS in tensors:
        if (shape := tensors[ROPE_FACTORS].shape) != (head_dim // 2,):
            raise ValueError(
                f"{header.path}: {ROPE_FACTORS} has the shape {shape}; expected ({head_dim // 2},), "
                "half the head size. Convert the model to GGUF again."
            )
        config["rope_freq_factors"] = header.read(ROPE_FACTORS).tolist()
    return config | _config_ids(fields)


def gguf_generation_config(fields: Fields) -> dict[str, Any]:
    """What generation needs: how tokens are drawn, and token ids; ends of turns and messages, too, are ends of text."""
    ids = token_ids(fields)
    named = [ids[name] for name in ("eos", "eot", "eom") if name in ids]
    ends = list(dict.fromkeys([*named, *known_ends(fields)]))
    config = _config_ids(fields) | ({"eos_token_id": ends if len(ends) > 1 else ends[0]} if ends else {})
    return config | _sampling(fields)


def known_ends(fields: Fields) -> list[int]:
    """Ids of the special tokens that end a text by their name."""
    kinds, tokens = fields.numbers("tokenizer.ggml.token_type"), fields.texts("tokenizer.ggml.tokens", [])
    special: np.ndarray = np.flatnonzero(np.isin(kinds[: len(tokens)], (_CONTROL, _USER_DEFINED)))
    return [int(i) for i in special if tokens[i] in _ENDS]


def _sampling(fields: Fields) -> dict[str, Any]:
    def numbers(names):
        found = {name: fields.number(f"general.sampling.{name}", None) for name in names}
        return {name: _decimal(x) if isinstance(x, float) else x for name, x in found.items() if x is not None}

    found = {_SAMPLING[name]: max(value, 0) for name, value in numbers(_SAMPLING).items()}
    others = {name: value for name, value in numbers(_NOT_KNOWN).items() if value != _NOT_KNOWN[name]}
    if found.get("temperature") == 0:  # always the likeliest
        del found["temperature"]
        return {**found, **others, "do_sample": False}
    return {**found, **others, **({"do_sample": True} if found else {})}


def _config_ids(fields: Fields) -> dict[str, Any]:
    ids = token_ids(fields)
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    return {theirs: ids[ours] for ours, theirs in names.items() if ours in ids}


def _refuse_unreadable(header: GGUFHeader, architecture: str) -> None:
    experts = header.fields.whole(f"{architecture}.expert_count", 0)
    if experts or any(re.search(r"ffn_gate_inp|_exps\.|ffn_up\.\d", name) for name in header.tensors):
        raise ValueError(f"{header.path} is a mixture of experts, which is not supported; expected a dense model.")


def _rope_scaling(header: GGUFHeader, architecture: str) -> dict[str, Any] | None:
    fields, prefix = header.fields, f"{architecture}.rope.scaling."
    given = {k.removeprefix(prefix): v for k, v in header.metadata.items() if k.startswith(prefix)}
    read = {"type": fields.text, "finetuned": fields.flag, "original_context_length": fields.whole}
    given |= {key: read.get(key, fields.number)(prefix + key) for key in _SCALING_KEYS & given.keys()}
    if linear := fields.number(f"{architecture}.rope.scale_linear", 0.0):  # before 2024
        given = {"type": "linear", "factor": linear} | given
    kind, factor = given.get("type", "linear"), given.get("factor", 0.0)
    extra = given.get("attn_factor", 1.0) * given.get("yarn_attn_factor", 1.0)
    if extra != 1.0 and (kind != "yarn" or not factor):
        raise ValueError(
            f"{header.path}: received the rotary scaling {shown(given)}; expected a factor on the attention with type "
            "'yarn' only. Use the safetensors folder."
        )
    if kind == "none" or not factor:
        return None
    unusual = given.keys() - _SCALING_KEYS or given.get("yarn_ext_factor", 1.0) != 1.0
    if kind not in ("linear", "yarn") or factor < 0 or unusual:
        raise ValueError(
            f"{header.path}: received the rotary scaling {shown(given)}; expected type 'linear' or 'yarn', and no "
            f"options but {', '.join(sorted(_SCALING_KEYS - {'yarn_ext_factor'}))}. "
            "Use the safetensors folder."
        )
    scaling = {"rope_type": kind, "factor": _decimal(factor)}
    if kind == "linear":
        return scaling
    if length := given.get("original_context_length"):
        scaling["original_max_position_embeddings"] = length
    for theirs, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if theirs in given:
            scaling[ours] = _decimal(given[theirs])
    if extra != 1.0:
        # llama.cpp multiplies YaRN's own factor with this one; Hugging Face replaces it.
        scaling["attention_factor"] = _decimal(extra) * (0.1 * math.log(factor) + 1.0)
    return scaling


def _decimal(value: float) -> float:
    """The shortest decimal number of a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
