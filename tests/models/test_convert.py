"""Loading: a GGUF file generates what PyTorch does, and whatever does not fit is listed at once."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from keras_xla import XLAGenerationLayer
from keras_xla.models.positions import inverse_frequencies
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.spec import DecoderSpec
from tests import reference
from tests.models.test_sources_gguf import as_gguf, write_gguf
from tests.models.test_sources_gguf import reference as gguf_reference


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
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
        weights["model.layers.2.mlp.up_proj.weight"][3, 4] = np.nan

    with pytest.raises(ValueError, match=r"NaN or infinity: .*layers\.2\.mlp\.up_proj\.weight"):
        XLAGenerationLayer.from_pretrained(edited(checkpoint, tmp_path, edit))


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_with_or_without_the_prefix_and_with_masks_load(prefix, checkpoint, tmp_path):
    def edit(weights):
        for name in list(weights):
            weights[prefix + name.removeprefix("transformer.")] = weights.pop(name)
        weights[f"{prefix}h.0.attn.bias"] = np.ones((1, 1, 8, 8), "float32")

    other = XLAGenerationLayer.from_pretrained(edited(checkpoint, tmp_path, edit, "gpt2"), max_new_tokens=4)
    expected = reference.generate("gpt2", [5, 6], max_new_tokens=4, eos_token_id=2)
    assert other.generate([[5, 6]])["sequences"][0, : len(expected)].tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_are_computed_in_float32(dtype, checkpoint, tmp_path):
    model = reference.torch_model("llama2")
    import copy

    half = copy.deepcopy(model).to(getattr(torch, dtype))
    half.save_pretrained(tmp_path)
    layer = XLAGenerationLayer.from_pretrained(tmp_path, max_new_tokens=8, eos_token_id=None)
    prompt = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = half.float().generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert layer.generate(prompt.numpy())["sequences"].tolist() == expected[:, 3:].tolist()
    assert {v.dtype for v in layer.model.variables} == {"float32"}


def test_a_layer_in_bfloat16_generates(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("llama2"), dtype="bfloat16", max_new_tokens=4)
    assert layer.model.embedding.dtype == "bfloat16"
    assert layer.generate([[5, 6, 7]])["sequences"].shape == (1, 4)


def test_an_unknown_architecture_lists_the_known(checkpoint, tmp_path):
    folder = tmp_path / "bert"
    shutil.copytree(checkpoint("gpt2"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    with pytest.raises(ValueError, match=r"model_type='bert'; expected one of gpt2, llama, mistral, opt, qwen2, qwen3"):
        XLAGenerationLayer.from_pretrained(folder)


def test_an_unknown_rope_type_lists_the_known():
    with pytest.raises(ValueError, match="rope_type='dynamic'; expected one of default, linear, llama3, yarn"):
        inverse_frequencies({"rope_theta": 1e4, "rope_type": "dynamic"}, 16)


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
