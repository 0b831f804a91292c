import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Q
from transformers import AutoConfig, AutoModelForCausalLM

from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.gguf.header import GGUFHeader

SIZES = dict(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
THEIR_NAMES = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
]


def permute(weights, heads):
    # As convert_hf_to_gguf.py does.
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def write_gguf(path, arch="llama", tensors=None, kind=Q.F32, fields=None, tokens=True):
    """A GGUF file of a tiny model; `fields` replaces or, with None, drops single entries."""
    values = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 160,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    values = {f"{arch}.{key}": value for key, value in values.items()}
    if tokens:
        values |= {f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(("padding", "bos", "eos"))}
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (values | (fields or {})).items():
        if key == "general.alignment":
            writer.add_custom_alignment(value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_string(key, value)
    for name, array in (tensors or {"token_embd.weight": np.zeros((96, 64), np.float32)}).items():
        if array.ndim == 1 or kind == Q.F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(model_type, **changes):
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    return config, state


def as_gguf(state, permuted):
    out = {}
    for name, value in state.items():
        if permuted and (".q_proj." in name or ".k_proj." in name):
            value = permute(value, 4 if ".q_proj." in name else 2)
        for ours, theirs in THEIR_NAMES:
            name = name.replace(ours, theirs)
        out[name] = value
    return out


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"tie_word_embeddings": False}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"tie_word_embeddings": False}),
    ],
)
def test_tensors_and_config_are_those_of_the_model(tmp_path, model_type, changes):
    config, state = reference(model_type, **changes)
    path = write_gguf(tmp_path / "m.gguf", model_type, as_gguf(state, permuted=model_type == "llama"))
    checkpoint = open_checkpoint(path)
    assert checkpoint.path == str(path)
    assert checkpoint.names() == set(state)
    for name, value in state.items():
        assert checkpoint.shape(name) == value.shape
        np.testing.assert_array_equal(checkpoint.read(name), value, err_msg=name)
        assert checkpoint.read(name).dtype == np.float32
    again = AutoConfig.for_model(**checkpoint.config)
    assert type(again) is type(config)
    for key, value in config.to_dict().items():
        if key not in ("architectures", "dtype", "use_cache", "layer_types", "transformers_version"):
            assert getattr(again, key) == value, key
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    assert checkpoint.read_tokenizer is None


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0])
def test_quantized_tensors(tmp_path, kind):
    _, state = reference("llama", tie_word_embeddings=False)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", "llama", as_gguf(state, True), kind))
    assert checkpoint.dtype() == {Q.F16: "float16", Q.BF16: "bfloat16"}.get(kind, "float32")
    for name, value in state.items():
        # Rows are quantized one by one, so their order does not matter.
        expected = gguf.dequantize(gguf.quantize(value, kind), kind) if value.ndim > 1 else value
        read = checkpoint.read(name)
        assert checkpoint.shape(name) == read.shape == value.shape
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, expected, err_msg=name)
        assert np.abs(read - value).max() <= np.abs(value).max() / 8


@pytest.mark.parametrize("kind", [Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.IQ2_S, Q.TQ2_0])
def test_every_quantization_is_dequantized_as_gguf_does(tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, (96, 256 // block * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = GGUFHeader(tmp_path / "m.gguf")
    assert header.tensors["token_embd.weight"].shape == (96, 256)
    np.testing.assert_array_equal(header.read("token_embd.weight"), gguf.dequantize(raw, kind))


def config_of(tmp_path, fields=None, **tensors):
    arrays = {"token_embd.weight": np.zeros((96, 64), np.float32), **tensors}
    return open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors=arrays, fields=fields)).config


def test_sizes_that_files_may_leave_out(tmp_path):
    dropped = ("attention.head_count_kv", "attention.key_length", "rope.freq_base")
    config = config_of(tmp_path, {f"llama.{key}": None for key in dropped})
    assert (config["num_key_value_heads"], config["head_dim"], config["rope_theta"]) == (4, 16, 10000.0)


def test_one_number_a_layer(tmp_path):
    assert config_of(tmp_path, {"llama.feed_forward_length": [160, 160]})["intermediate_size"] == 160
    with pytest.raises(ValueError, match=r"differs between layers: \[160, 96\]"):
        config_of(tmp_path, {"llama.feed_forward_length": [160, 96]})


def test_rope_scaling(tmp_path):
    prefix = "llama.rope.scaling."
    linear = config_of(tmp_path, {prefix + "type": "linear", prefix + "factor": 4.0})
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    given = {"type": "yarn", "factor": 8.0, "original_context_length": 64, "yarn_beta_fast": 16.0}
    yarn = config_of(tmp_path, {prefix + key: value for key, value in given.items()})
    expected = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 16.0}
    assert yarn["rope_scaling"] == expected
    stretched = config_of(tmp_path, {prefix + "type": "yarn", prefix + "factor": 8.0, prefix + "attn_factor": 0.5})
    assert stretched["rope_scaling"]["attention_factor"] == pytest.approx(0.5 * (0.1 * np.log(8) + 1))
    assert "rope_scaling" not in config_of(tmp_path, {prefix + "type": "none"})
    with pytest.raises(ValueError, match=r"'type': 'longrope'.*expected type 'linear' or 'yarn'"):
        config_of(tmp_path, {prefix + "type": "longrope", prefix + "factor": 4.0})


@pytest.mark.parametrize(
    "given, message",
    [
        ({"llama.rope.scaling.attn_factor": 1.5}, "a factor on the attention with type 'yarn' only"),
        ({"llama.attention.causal": False}, r"llama\.attention\.causal=False, of a model that makes embeddings"),
    ],
)
def test_what_would_change_the_tokens_is_refused(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", fields=given))


def test_llama_3_frequency_factors(tmp_path):
    factors = np.array([1, 1, 1, 1.5, 2, 4, 8, 8], np.float32)
    path = write_gguf(
        tmp_path / "m.gguf",
        tensors={"token_embd.weight": np.zeros((96, 64), np.float32), "rope_freqs.weight": factors},
    )
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["rope_freq_factors"] == factors.tolist()
    assert checkpoint.names() == {"model.embed_tokens.weight"}
    with pytest.raises(ValueError, match=r"rope_freqs.weight has the shape \(4,\); expected \(8,\)"):
        config_of(tmp_path, **{"rope_freqs.weight": factors[:4]})


def test_sliding_window_makes_a_mistral(tmp_path):
    config = config_of(tmp_path, {"llama.attention.sliding_window": 32})
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 32)


def test_end_of_turn_ends_generation_too(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", fields={"tokenizer.ggml.eot_token_id": 7})
    checkpoint = open_checkpoint(path)
    assert checkpoint.generation_config["eos_token_id"] == [2, 7]
    assert checkpoint.config["eos_token_id"] == 2


def test_ends_of_messages_and_special_tokens_with_a_known_name_do_so_too(tmp_path):
    """As in llama.cpp, whether they are control tokens or a user's own. A word of that name is no end."""
    fields = {
        "tokenizer.ggml.eom_token_id": 5,
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_end|>", "a", "<|end|>"],
        "tokenizer.ggml.token_type": [2, 3, 3, 3, 4, 1, 1],
    }
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", fields=fields))
    assert checkpoint.generation_config["eos_token_id"] == [2, 5, 3, 4]


@pytest.mark.parametrize(
    "given, expected",
    [
        (dict(temp=0.5, top_k=20), dict(do_sample=True, temperature=0.5, top_k=20)),
        (dict(top_p=0.75, min_p=0.125), dict(do_sample=True, top_p=0.75, min_p=0.125)),
        (dict(temp=0.0, top_p=0.75), dict(do_sample=False, top_p=0.75)),
        (dict(temp=-1.0, top_k=-1), dict(do_sample=False, top_k=0)),
        (dict(penalty_repeat=1.5, mirostat=0, xtc_probability=0.0), dict(penalty_repeat=1.5)),
        (dict(penalty_repeat=1.0, xtc_probability=0.5), dict(xtc_probability=0.5)),
        ({}, {}),
    ],
)
def test_what_a_file_says_of_drawing_is_the_default(tmp_path, given, expected):
    fields = {f"general.sampling.{name}": value for name, value in given.items()}
    made = open_checkpoint(write_gguf(tmp_path / "m.gguf", fields=fields)).generation_config
    assert {name: value for name, value in made.items() if not name.endswith("_token_id")} == expected


def test_the_tokenizer_is_that_of_the_file_that_was_opened_whatever_becomes_of_it(tmp_path):
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a", "<x>"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -2.0, -1.0, -0.5, 0.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 4],
    }
    path = write_gguf(tmp_path / "m.gguf", fields=fields)
    expected = open_checkpoint(path).read_tokenizer()
    checkpoint = open_checkpoint(path)
    with open(path, "r+b") as file:  # in place, as a copy over it or a download writes it
        file.write(bytes(path.stat().st_size))
    tokenizer = checkpoint.read_tokenizer()
    assert tokenizer("a<x>aa")["input_ids"] == expected("a<x>aa")["input_ids"]


def test_a_tensor_of_no_known_name_keeps_it(tmp_path):
    arrays = {
        "token_embd.weight": np.zeros((96, 64), np.float32),
        "blk.0.attn_qkv.weight": np.zeros((8, 64), np.float32),
    }
    assert "blk.0.attn_qkv.weight" in open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors=arrays)).names()
