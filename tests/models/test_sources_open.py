import ast
import json
import pathlib

import huggingface_hub
import pytest

import keras_xla.models.sources
from keras_xla.models.sources.checkpoint import open_checkpoint
from keras_xla.models.sources.gguf.file import GGUFFile
from tests.models.test_sources_gguf import write_gguf
from tests.models.test_sources_safetensors import save


@pytest.mark.parametrize(
    "text",
    [
        "./models/llama",
        "../llama",
        "/no/such/folder",
        "~/no-such-folder",
        "model.gguf",
        "a/b.safetensors",
        "a/b/c",
        "a b",
        "",
    ],
)
def test_missing_paths(text):
    with pytest.raises(FileNotFoundError, match="neither a file nor a folder") as error:
        open_checkpoint(text)
    assert repr(text) in str(error.value)


def test_a_path_object_is_never_a_hub_name():
    with pytest.raises(FileNotFoundError, match="'gpt2-no-such'"):
        open_checkpoint(pathlib.Path("gpt2-no-such"))


def test_gguf_is_known_by_its_content_too(tmp_path):
    path = write_gguf(tmp_path / "sha256-0123", "llama")
    assert isinstance(open_checkpoint(str(path)), GGUFFile)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_other_files(tmp_path, name):
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(ValueError, match=r"expected a folder.*or a GGUF file.*never opened"):
        open_checkpoint(tmp_path / name)


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    state = save(tmp_path / "llama")
    assert open_checkpoint("~/llama").names() == set(state)


@pytest.mark.parametrize("name", ["gpt2", "org/SmolLM2-1.7B-Instruct"])
def test_hub_names(tmp_path, monkeypatch, name):
    asked = {}

    def snapshot_download(repo, allow_patterns, ignore_patterns):
        from huggingface_hub.utils import filter_repo_objects

        files = [
            "config.json",
            "model.safetensors",
            "model.fp32-00001-of-00002.safetensors",
            "adapter_model.safetensors",
            "pytorch_model.bin",
            "onnx/config.json",
            "merges.txt",
            "tokenizer.model",
        ]
        files += [
            "chat_template.jinja",
            "rust_model.ot",
            "consolidated.safetensors",
            "modeling_custom.py",
            "source.spm",
            "additional_chat_templates/tool_use.jinja",
            "a/config.json",
            "added/config.json",
            "onnx/additional_chat_templates/tool_use.jinja",
        ]
        asked[repo] = list(filter_repo_objects(files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    state = save(tmp_path)
    assert open_checkpoint(name).names() == set(state)
    expected = [
        "config.json",
        "model.safetensors",
        "merges.txt",
        "tokenizer.model",
        "chat_template.jinja",
        "source.spm",
        "additional_chat_templates/tool_use.jinja",
    ]
    assert asked == {name: expected}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What the hub is asked for, call by call; what is in the temporary folder is what it has given."""
    calls = []

    def snapshot_download(repo, allow_patterns, ignore_patterns):
        calls.append(list(allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_files_that_an_index_names_are_downloaded_whatever_they_are_called(tmp_path, asked):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    with pytest.raises(ValueError, match=r"no config\.json"):
        open_checkpoint("org/name")
    assert asked[1:] == [["b.safetensors"]]


@pytest.mark.parametrize("named", ["other.safetensors", "other.safetensors.index.json"])
def test_weights_that_a_config_names_are_downloaded(tmp_path, asked, named):
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_weights": named}))
    if named.endswith(".json"):
        (tmp_path / named).write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"other\.safetensors"):
        open_checkpoint("org/name")
    assert asked[1:] == [["part.safetensors" if named.endswith(".json") else named]]


def test_weights_that_a_config_names_are_asked_for_once(tmp_path, asked):
    state = save(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_weights": "other.safetensors"}))
    assert open_checkpoint("org/name").names() == set(state) and len(asked) == 1


def test_a_hub_repository_without_safetensors_gives_what_tensorflow_saved(asked):
    with pytest.raises(ValueError, match=r"no config\.json"):
        open_checkpoint("org/name")
    assert asked[1:] == [["tf_model.h5"]]


def test_hub_out_of_reach(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("no route to huggingface.co\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        OSError, match=r"'org/name'.*not a local folder.*no route to huggingface\.co\)\. Give a local folder"
    ):
        open_checkpoint("org/name")


def test_no_framework_and_no_pickle_is_imported():
    """But for Keras where a source is a live Keras model."""
    folder = pathlib.Path(keras_xla.models.sources.__file__).parent
    imported = set()
    for file in folder.rglob("*.py"):
        live = file.stem == "live_models" or file.parent.name == "keras_hub"
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            imported |= {name.split(".")[0] for name in names} - ({"keras"} if live else set())
    assert not imported & {"torch", "tensorflow", "jax", "pickle", "keras"}
