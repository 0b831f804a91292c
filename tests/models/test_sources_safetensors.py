import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.safetensors_folder import open_tokenizer
from tests.tokenizers import tiny


def save(folder, dtype=torch.float32, **options):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    model.save_pretrained(folder, **options)
    return {name: value.float().numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"max_shard_size": "10KB"}])
def test_tensors_are_those_saved(tmp_path, dtype, options):
    state = save(tmp_path, dtype, **options)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == bool(options)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.path == str(tmp_path)
    assert checkpoint.names() == set(state)
    stored = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}[dtype]
    for name, value in state.items():
        assert checkpoint.shape(name) == value.shape
        read = checkpoint.read(name)
        assert read.dtype == stored
        np.testing.assert_array_equal(read.astype(np.float32), value)


@pytest.mark.parametrize("dtype, name", [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8")])
def test_tensors_of_no_floats_are_refused_by_name(tmp_path, dtype, name):
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    matrix = next(key for key, value in tensors.items() if value.ndim == 2)
    safetensors.torch.save_file({**tensors, matrix: tensors[matrix].to(dtype)}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=rf"the tensor '{matrix}' is stored as {name}; expected one of F64, F32"):
        load_model(open_checkpoint(tmp_path))


def test_configs_are_the_files(tmp_path):
    save(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == json.loads((tmp_path / "config.json").read_text())
    assert checkpoint.generation_config == json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    assert open_checkpoint(tmp_path).generation_config is None


def test_tokenizer(tmp_path):
    save(tmp_path)
    assert open_checkpoint(tmp_path).read_tokenizer is None
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(tmp_path)
    tokenizer = open_checkpoint(tmp_path).read_tokenizer()
    assert tokenizer("hello there world").input_ids == [1, 0, 2]


def test_missing_shards_are_all_named(tmp_path):
    save(tmp_path, max_shard_size="10KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    shards[1].unlink()
    shards[3].unlink()
    with pytest.raises(FileNotFoundError, match=f"2 of the {len(shards)} files.*missing") as error:
        open_checkpoint(tmp_path)
    assert shards[1].name in str(error.value)
    assert shards[3].name in str(error.value)
    assert shards[0].name not in str(error.value)


@pytest.mark.parametrize("keep", [0, 5, 100, -1000, -1])
def test_truncated_file(tmp_path, keep):
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    with pytest.raises(
        ValueError, match=rf"model\.safetensors cannot be read: it has {len(content[:keep])} bytes"
    ) as e:
        open_checkpoint(tmp_path)
    if keep < 0:
        assert f"its header describes {len(content)}" in str(e.value)


def test_damaged_files(tmp_path):
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    for damaged in (
        content + b"more",
        b"\x10" + bytes(7) + b"not json" * 20,
        b"\x02" + bytes(7) + b"[]",
        bytes(50),
    ):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"it has {len(damaged)} bytes, and its header"):
            open_checkpoint(tmp_path)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.h5", "flax_model.msgpack"])
def test_other_weights_are_never_opened(tmp_path, name):
    save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(FileNotFoundError, match=rf"it has {name}.*never opened.*from_pretrained.*torch"):
        open_checkpoint(tmp_path)


def test_folder_without_config(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json\. Expected"):
        open_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"adapter.*merge_and_unload"):
        open_checkpoint(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"It holds m\.gguf: give the path of that file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list"),
        ("{}", "has no 'model_type'"),
        ('{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}', r"quantized \(awq\)"),
    ],
)
def test_configs_that_cannot_be_used(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_an_adapter_beside_a_model_is_not_left_out_in_silence(tmp_path):
    save(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.warns(UserWarning, match="holds an adapter.*merge_and_unload"):
        open_checkpoint(tmp_path)


def test_parts_without_their_index_are_named(tmp_path):
    save(tmp_path, max_shard_size="10KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"has model-00001-of-.*download model\.safetensors\.index\.json too"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "a/b.safetensors", ".."])
def test_an_index_that_names_files_elsewhere_is_refused(tmp_path, name):
    save(tmp_path, max_shard_size="10KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="names files outside of its folder"):
        open_checkpoint(tmp_path)


def name_weights(folder, name):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": name}))


@pytest.mark.parametrize("parts", [False, True], ids=["one file", "two files"])
def test_the_weights_that_a_config_names_are_read(tmp_path, parts):
    state = save(tmp_path, **({"max_shard_size": "10KB"} if parts else {}))
    named = "fixed.safetensors.index.json" if parts else "fixed.safetensors"
    (tmp_path / ("model.safetensors.index.json" if parts else "model.safetensors")).rename(tmp_path / named)
    safetensors.torch.save_file({"another": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).names() == {"another"}
    name_weights(tmp_path, named)
    assert open_checkpoint(tmp_path).names() == set(state)


@pytest.mark.parametrize("name", ["../a.safetensors", "a/b.safetensors", "model.bin", 3, ".safetensors/.."])
def test_weights_that_cannot_be_those_of_a_config_are_refused(tmp_path, name):
    save(tmp_path)
    name_weights(tmp_path, name)
    with pytest.raises(ValueError, match=f"transformers_weights={name!r}; expected the name of a .safetensors file"):
        open_checkpoint(tmp_path)


def test_weights_that_a_config_names_and_that_are_not_there(tmp_path):
    save(tmp_path)
    name_weights(tmp_path, "other.safetensors")
    with pytest.raises(FileNotFoundError, match=r"names other\.safetensors as the file of its weights"):
        open_checkpoint(tmp_path)


def test_a_tokenizers_own_code_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    save(tmp_path)
    asked = []
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "y")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own"}))  # for which transformers has no class
    own = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass")
    with pytest.raises(ValueError, match=r"Code that comes with a tokenizer is not run\."):
        open_tokenizer(str(tmp_path))
    assert not asked and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"tokenizer.json": '{"model": '}, "tokenizer.json"),
        ({"tokenizer.json": '{"model": {"type": "Unheard"}}'}, "tokenizer.json"),
        ({"tokenizer_config.json": "[]"}, "tokenizer_config.json"),
        ({"tokenizer.json": "", "tokenizer_config.json": "\x00"}, "tokenizer.json, tokenizer_config.json"),
        ({"chat_template.jinja": b"{{ \xff }}"}, "chat_template.jinja"),
    ],
    ids=["cut off", "unknown model", "a list", "both", "no UTF-8"],
)
def test_tokenizer_files_that_cannot_be_read_are_named(tmp_path, damage, named):
    save(tmp_path)
    tiny().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    for name, content in damage.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"{tmp_path}: its tokenizer cannot be read from {named} \("):
        open_checkpoint(tmp_path).read_tokenizer()
