"""Loading: a GGUF file generates what PyTorch does, and whatever does not fit is listed at once."""

import copy
import json
import pathlib
import shutil

import keras
import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from keras import ops
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from keras_xla import XLAGenerationLayer
from keras_xla.models.convert import common
from keras_xla.models.layers.positions import distance_buckets, inverse_frequencies, sinusoids
from keras_xla.models.parameters import parameters
from keras_xla.models.registry import FAMILIES, load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.spec import DecoderSpec
from tests import reference
from tests.models.test_sources_gguf import as_gguf, write_gguf
from tests.models.test_sources_gguf import reference as gguf_reference


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.quick("llama")
def test_a_gguf_file_generates_the_references_tokens(model_type, tmp_path):
    config, state = gguf_reference(model_type)
    path = write_gguf(tmp_path / "m.gguf", model_type, as_gguf(state, permuted=model_type == "llama"))
    layer = XLAGenerationLayer.from_pretrained(path, eos_token_id=None, max_new_tokens=8)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    model.load_state_dict({name: torch.tensor(value) for name, value in state.items()}, strict=False)
    model.tie_weights()
    prompt = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        expected = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert layer.generate(prompt.numpy())["sequences"].tolist() == expected[:, 5:].tolist()


def edited(checkpoint, tmp_path, edit, variant="llama2"):
    """A copy of a checkpoint whose weights `edit` changed."""
    folder = tmp_path / "edited"
    shutil.copytree(checkpoint(variant), folder)
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_missing_unexpected_and_misshapen_weights_are_all_listed_at_once(checkpoint, tmp_path):
    def edit(weights):
        del weights["model.norm.weight"], weights["model.layers.1.self_attn.k_proj.weight"]
        weights["model.layers.9.extra.weight"] = np.zeros(2, "float32")
        weights["model.layers.0.mlp.down_proj.weight"] = np.zeros((32, 47), "float32")

    with pytest.raises(ValueError) as caught:
        XLAGenerationLayer.from_pretrained(edited(checkpoint, tmp_path, edit))
    text = str(caught.value)
    assert "2 missing: layers.1.self_attn.k_proj.weight, norm.weight" in text
    assert "1 unexpected: layers.9.extra.weight" in text
    assert "layers.0.mlp.down_proj.weight: received (32, 47), expected (32, 48)" in text


def test_weights_with_nan_are_named(checkpoint, tmp_path):
    def edit(weights):
        weights["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan

    with pytest.raises(ValueError, match=r"NaN or infinity: .*layers\.1\.mlp\.up_proj\.weight"):
        XLAGenerationLayer.from_pretrained(edited(checkpoint, tmp_path, edit))


def test_weights_that_float16_cannot_hold_are_named(checkpoint, tmp_path):
    def edit(weights):
        weights["model.layers.1.mlp.up_proj.weight"][3, 4] = -1e5

    folder = edited(checkpoint, tmp_path, edit)
    with pytest.raises(ValueError, match=r"float16 cannot hold: .*layers\.1\.mlp\.up_proj\.weight\. Pass dtype="):
        XLAGenerationLayer.from_pretrained(folder, dtype="float16")
    XLAGenerationLayer.from_pretrained(folder, dtype="bfloat16")


@pytest.mark.parametrize("variant", ["gpt2", "opt-125m", "llama-tied-gqa"])
@pytest.mark.quick("gpt2")
def test_a_tied_embedding_may_be_stored_as_the_head_alone(variant, checkpoint, tmp_path):
    """`safetensors.torch.save_model` keeps the first of the names in the alphabet."""

    def edit(weights):
        (name,) = (name for name in weights if name.endswith(("wte.weight", "embed_tokens.weight")))
        weights["lm_head.weight"] = weights.pop(name)

    other = XLAGenerationLayer.from_pretrained(edited(checkpoint, tmp_path, edit, variant), max_new_tokens=4)
    expected = reference.generate(variant, [5, 6], max_new_tokens=4, eos_token_id=2)
    assert other.generate([[5, 6]])["sequences"][0, : len(expected)].tolist() == expected


@pytest.mark.slow
def test_opt_without_its_embedding_size(checkpoint, tmp_path):
    folder = edited(checkpoint, tmp_path, lambda weights: None, "opt-125m")
    config = json.loads((folder / "config.json").read_text())
    expected = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=4).generate([[5, 6]])["sequences"]
    assert config["word_embed_proj_dim"] == config["hidden_size"]
    (folder / "config.json").write_text(json.dumps({**config, "word_embed_proj_dim": None}))
    made = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=4).generate([[5, 6]])["sequences"]
    assert made.tolist() == expected.tolist()


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.quick("transformer.")
def test_names_with_or_without_the_prefix_and_with_masks_load(prefix, checkpoint, tmp_path):
    def edit(weights):
        for name in list(weights):
            weights[prefix + name.removeprefix("transformer.")] = weights.pop(name)
        weights[f"{prefix}h.0.attn.bias"] = np.ones((1, 1, 8, 8), "float32")

    other = XLAGenerationLayer.from_pretrained(edited(checkpoint, tmp_path, edit, "gpt2"), max_new_tokens=4)
    expected = reference.generate("gpt2", [5, 6], max_new_tokens=4, eos_token_id=2)
    assert other.generate([[5, 6]])["sequences"][0, : len(expected)].tolist() == expected


def test_a_name_with_and_without_the_prefix_is_two_tensors(checkpoint, tmp_path):
    def edit(weights):
        weights["ln_f.weight"] = weights["transformer.ln_f.weight"] * 2

    folder = edited(checkpoint, tmp_path, edit, "gpt2")
    with pytest.raises(
        ValueError, match=r"1 stored twice, with the prefix 'transformer\.' and without it: ln_f\.weight"
    ):
        XLAGenerationLayer.from_pretrained(folder)


def test_the_positions_of_the_first_llamas_are_those_of_transformers(checkpoint, tmp_path):
    folder = edited(checkpoint, tmp_path, lambda weights: None)
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps({**config, "max_sequence_length": 64}))
    expected = transformers.AutoConfig.from_pretrained(folder).max_position_embeddings
    assert load_model(open_checkpoint(folder)).max_positions == expected == 2048


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.quick("bfloat16")
def test_half_precision_weights_are_computed_in_float32(dtype, checkpoint, tmp_path):
    model = reference.torch_model("llama2")

    half = copy.deepcopy(model).to(getattr(torch, dtype))
    half.save_pretrained(tmp_path)
    layer = XLAGenerationLayer.from_pretrained(tmp_path, max_new_tokens=8, eos_token_id=None)
    prompt = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = half.float().generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert layer.generate(prompt.numpy())["sequences"].tolist() == expected[:, 3:].tolist()
    assert {v.dtype for v in layer.model.variables} == {"float32"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.quick("None-float16", "int8-bfloat16")
def test_auto_is_the_dtype_of_the_checkpoint(dtype, quantization, checkpoint, tmp_path):
    model = copy.deepcopy(reference.torch_model("llama2")).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    layer = XLAGenerationLayer.from_pretrained(tmp_path, dtype="auto", quantization=quantization)
    assert layer.dtype_policy.name == layer.model.dtype_policy.name == dtype
    assert layer.model.final_norm.scale.dtype == dtype
    assert layer.model.embedding.values.dtype == ("int8" if quantization else dtype)
    assert layer.generate([[5, 6, 7]], max_new_tokens=2)["sequences"].shape == (1, 2)


def test_what_is_stored_as_the_model_wants_it_is_never_in_another_dtype(tmp_path, monkeypatch):
    """In float32 bfloat16 takes twice the memory."""
    read, values = [], common._values
    monkeypatch.setattr(common, "_values", lambda *args: read.append(values(*args)) or read[-1])
    copy.deepcopy(reference.torch_model("llama2")).to(torch.bfloat16).save_pretrained(tmp_path)
    XLAGenerationLayer.from_pretrained(tmp_path, dtype="auto")
    assert {array.dtype.name for array in read} == {"bfloat16"}


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 by default")
def test_in_float64_no_digit_is_lost(tmp_path):
    model = copy.deepcopy(reference.torch_model("llama2")).double()
    table = model.model.embed_tokens.weight.data
    table += 1e-12
    model.save_pretrained(tmp_path)
    made = XLAGenerationLayer.from_pretrained(tmp_path, dtype="auto").model.embedding.values
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(made), table.numpy())


@pytest.mark.slow
def test_a_layer_in_bfloat16_generates(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("llama2"), dtype="bfloat16", max_new_tokens=4)
    assert layer.model.embedding.values.dtype == "bfloat16"
    assert layer.generate([[5, 6, 7]])["sequences"].shape == (1, 4)


def test_an_unknown_architecture_lists_the_known(checkpoint, tmp_path):
    folder = tmp_path / "bert"
    shutil.copytree(checkpoint("gpt2"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(ValueError, match=f"model_type='bert'; expected one of {', '.join(FAMILIES)}"):
        XLAGenerationLayer.from_pretrained(folder)


def test_an_unknown_rope_type_lists_the_known():
    known = "default, linear, dynamic, llama3, yarn"
    with pytest.raises(ValueError, match=f"rope_type='longrope' is not supported here; expected one of {known}"):
        inverse_frequencies({"rope_theta": 1e4, "rope_type": "longrope"}, 16)


def test_ggufs_frequency_factors_are_llama3s_scaling():
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    scaled, _ = inverse_frequencies({"rope_theta": 5e5, **llama3, "original_max_position_embeddings": 8192}, 64)
    plain, _ = inverse_frequencies({"rope_theta": 5e5}, 64)
    factors = [a / b for a, b in zip(plain, scaled, strict=True)]
    again, _ = inverse_frequencies({"rope_theta": 5e5, "frequency_factors": factors}, 64)
    np.testing.assert_allclose(again, scaled, rtol=1e-6)


@pytest.mark.parametrize("variant", ["gpt2", "llama3", "mistral", "opt-350m"])
def test_a_spec_survives_json(variant, checkpoint):
    spec = load_model(open_checkpoint(checkpoint(variant))).spec
    assert DecoderSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_t5s_buckets_are_the_references():
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-600, 601)
    for buckets, longest in ((32, 128), (8, 20), (64, 256), (32, 100), (16, 64), (6, 9), (48, 200)):
        for both_ways in (True, False):
            expected = T5Attention._relative_position_bucket(torch.tensor(distances), both_ways, buckets, longest)
            made = distance_buckets(distances, buckets, longest, both_ways)
            np.testing.assert_array_equal(made, expected.numpy())


@pytest.mark.parametrize(
    "variant", ["gpt2", "opt-350m", "qwen3", "t5-gated", "bart", "marian-two-vocabularies", "whisper"]
)
def test_every_variable_is_loaded_by_name(variant, checkpoint):
    model = load_model(open_checkpoint(checkpoint(variant)))
    found = [v for x in parameters(model).values() for v in getattr(x, "variables", [x])]
    assert {id(v) for v in found} == {id(v) for v in model.variables}


def without_prefix(weights):
    for name in list(weights):
        weights[name.removeprefix("model.")] = weights.pop(name)


def with_copies(weights):
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = weights["shared.weight"].copy()


def with_one_copy(weights):
    weights["decoder.embed_tokens.weight"] = weights.pop("shared.weight")


def with_a_head(weights):
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"].copy()


def with_sinusoids(weights):
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_positions.weight"] = sinusoids(64, 32)


def with_a_bias_on_the_keys(weights):
    """It adds the same number to all scores of a query, so that nothing changes."""
    names = [name for name in weights if name.endswith("k_proj.weight")]
    assert len(names) == 6
    for i, name in enumerate(names):
        weights[name.replace("weight", "bias")] = np.full((32,), i, "float32")


def with_an_unused_table(weights):
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = np.zeros((8, 4), "float32")


@pytest.mark.parametrize(
    ("variant", "edit"),
    [
        ("t5", with_copies),
        ("t5", with_one_copy),
        ("t5", with_an_unused_table),
        ("bart", without_prefix),
        ("mbart", without_prefix),
        ("marian", with_sinusoids),
        ("marian-two-vocabularies", without_prefix),
        ("whisper", with_a_head),
        ("whisper", without_prefix),
        ("whisper", with_a_bias_on_the_keys),
    ],
)
def test_other_names_for_the_same_weights_load(variant, edit, checkpoint, tmp_path):
    model = load_model(open_checkpoint(edited(checkpoint, tmp_path, edit, variant)))
    ids = np.array([[3, 40, 41, 42]], "int32")
    source = ids + 5
    if variant == "whisper":
        source = np.random.default_rng(0).normal(0, 1, (1, reference.MEL, reference.FRAMES)).astype("float32")
    expected = reference.seq2seq_logits(variant, source, ids)
    np.testing.assert_allclose(model(source=source, ids=ids), expected, atol=1e-4)


def test_positions_of_its_own_count_as_in_pytorch(checkpoint, tmp_path):
    """As a training in TensorFlow leaves them. PyTorch saves none, as its own are sinusoids; it reads what is there."""
    rng = np.random.default_rng(0)

    def edit(weights):
        for side in ("encoder", "decoder"):
            weights[f"model.{side}.embed_positions.weight"] = rng.normal(size=(64, 32)).astype("float32")

    folder = edited(checkpoint, tmp_path, edit, "marian")
    ids = np.array([[3, 40, 41, 42]], "int32")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    with torch.no_grad():
        expected = theirs(torch.tensor(ids + 5), decoder_input_ids=torch.tensor(ids)).logits.numpy()
    assert np.abs(expected - reference.seq2seq_logits("marian", ids + 5, ids)).max() > 0.1
    model = load_model(open_checkpoint(folder))
    np.testing.assert_allclose(model(source=ids + 5, ids=ids), expected, atol=1e-4)


@pytest.mark.parametrize("variant", ["bart", "marian"])
def test_a_bias_on_the_logits_that_is_not_stored_is_zero(variant, checkpoint, tmp_path):
    def edit(weights):
        del weights["final_logits_bias"]

    ids = np.array([[3, 40, 41, 42]], "int32")
    model = load_model(open_checkpoint(edited(checkpoint, tmp_path, edit, variant)))
    bias = reference.torch_model(variant).final_logits_bias.numpy()
    expected = reference.seq2seq_logits(variant, ids + 5, ids) - bias
    np.testing.assert_allclose(model(source=ids + 5, ids=ids), expected, atol=1e-4)


def test_a_head_with_values_of_its_own_is_used_whatever_the_config_says(checkpoint, tmp_path):
    ids = np.array([[3, 40, 41, 42]], "int32")
    config = json.loads((pathlib.Path(checkpoint("t5-gated")) / "config.json").read_text())
    model = load_model(open_checkpoint(checkpoint("t5-gated")))
    assert config["tie_word_embeddings"] or transformers.__version__.startswith("4.")
    assert not model.spec.decoder.tied
    np.testing.assert_allclose(
        model(source=ids + 5, ids=ids), reference.seq2seq_logits("t5-gated", ids + 5, ids), atol=1e-4
    )


def test_what_does_not_fit_an_encoder_decoder_is_all_listed_at_once(checkpoint, tmp_path):
    def edit(weights):
        del weights["model.decoder.layers.1.encoder_attn.v_proj.bias"], weights["model.shared.weight"]
        weights["model.encoder.layers.0.self_attn.extra.weight"] = np.zeros(2, "float32")
        weights["model.encoder.layernorm_embedding.bias"] = np.zeros((31,), "float32")
        weights["model.decoder.layers.0.encoder_attn.k_proj.weight"] = np.zeros((32, 16), "float32")

    with pytest.raises(ValueError) as caught:
        load_model(open_checkpoint(edited(checkpoint, tmp_path, edit, "bart")))
    text = str(caught.value)
    assert "2 missing: decoder.layers.1.encoder_attn.v_proj.bias, shared.weight" in text
    assert "1 unexpected: encoder.layers.0.self_attn.extra.weight" in text
    assert "encoder.layernorm_embedding.bias: received (31,), expected (32,)" in text
    both = "decoder.layers.0.encoder_attn.k_proj.weight + decoder.layers.0.encoder_attn.v_proj.weight"
    assert f"{both}: received (32, 16) + (32, 32), expected (64, 32)" in text


def test_copies_that_differ_are_named(checkpoint, tmp_path):
    def edit(weights):
        with_copies(weights)
        weights["encoder.embed_tokens.weight"][3, 4] += 1

    with pytest.raises(ValueError, match=r"1 with other values than .* copies of: encoder\.embed_tokens\.weight"):
        load_model(open_checkpoint(edited(checkpoint, tmp_path, edit, "t5")))


@pytest.mark.parametrize("variant", ["llama2", "t5", "bart", "whisper"])
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_every_kind_of_model_runs_in_half_precision(variant, dtype, checkpoint):
    model = load_model(open_checkpoint(checkpoint(variant)), dtype=dtype)
    ids = np.array([[3, 40, 41, 42]], "int32")
    if variant == "llama2":
        logits, expected = model(ids), reference.logits(variant, ids)
    else:
        source = ids + 5
        if variant == "whisper":
            source = np.random.default_rng(0).normal(0, 1, (1, reference.MEL, reference.FRAMES)).astype("float32")
        logits, expected = model(source=source, ids=ids), reference.seq2seq_logits(variant, source, ids)
    logits = ops.convert_to_numpy(logits)
    assert logits.dtype == "float32"
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [0, 1, common._AT_ONCE, common._AT_ONCE + 3])
def test_one_value_that_is_no_number_is_found_wherever_it_stands(dtype, size):
    largest = float(ml_dtypes.finfo(dtype).max)
    values = np.full((size,), largest, dtype)
    values[::2] = -largest
    assert common.all_finite(values)
    for where in {0, size // 2, size - 1} if size else ():
        for wrong in (np.nan, -np.nan, np.inf, -np.inf):
            broken = values.copy()
            broken[where] = wrong
            assert not common.all_finite(broken)
    assert common.all_finite(np.zeros((3, 4), dtype).T)
