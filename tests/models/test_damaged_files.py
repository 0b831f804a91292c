"""Damaged checkpoints: a clear error each, no hang, and no memory beyond the files' size."""

import json
import shutil
import subprocess
import sys
import time
import tracemalloc
import warnings

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from keras_xla.generation.defaults import known_options, resolve, stored_options
from keras_xla.models.registry import load_model, model_config
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.models.test_sources_gguf import write_gguf

MEGABYTES = 30  # more than the files and what reads them take
ODD = [
    b"\xff" * 8,
    b"\x00" * 8,
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    (2**40).to_bytes(8, "little"),
    b"\x01" + b"\x00" * 7,
]


def damaged(data: bytes, rng: np.random.Generator, head: int) -> bytes:
    """The bytes of a file, changed in one to three places, most of them in the first `head`."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, min(head, len(data)) if rng.random() < 0.9 else len(data)))
        match rng.integers(6):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at] = int(rng.integers(256))
            case 2:
                data[at : at + 8] = ODD[rng.integers(len(ODD))]
            case 3:
                del data[at : at + int(rng.integers(1, 40))]
            case 4:
                data[at:at] = data[at : at + int(rng.integers(1, 40))]
            case 5:
                del data[at:]
        if not data:
            break
    return bytes(data)


def opened(source, folder):
    """What is read of a checkpoint, unless an error says where it is."""
    start = time.perf_counter()
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(source)
        for name in checkpoint.names():
            checkpoint.shape(name)
        load_model(checkpoint)
    except (ValueError, OSError) as error:
        assert str(folder) in str(error) and len(str(error)) < 20_000, error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MEGABYTES * 2**20 and time.perf_counter() - start < 10


def read_tokenizer(source):
    """A checkpoint's tokenizer; None if it has none, or an error says that it cannot be read, and where it is."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings(action="ignore"):
            read = open_checkpoint(source).read_tokenizer
            return None if read is None else read()
    except ValueError as error:
        assert str(source) in str(error) and len(str(error)) < 20_000, error
    finally:
        assert time.perf_counter() - start < 10


COUNTS = [40, pytest.param(3400, marks=pytest.mark.slow)]
FEWER = [10, pytest.param(1500, marks=pytest.mark.slow)]
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("count", COUNTS)
def test_gguf_files(tmp_path, count):
    whole = tmp_path / "whole.gguf"
    write_gguf(whole)
    data, rng = whole.read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (tmp_path / "damaged.gguf").write_bytes(damaged(data, rng, head=3000))
        opened(tmp_path / "damaged.gguf", tmp_path)


BYTE_LEVEL = dict(model="gpt2", pre="smollm", tokens=["a", "b", "ab", "<e>"], token_type=[1, 1, 1, 3], merges=["a b"])
PIECES = dict(
    model="llama",
    tokens=["<unk>", "<s>", "</s>", "▁a", "▁", "a"],
    token_type=[2, 3, 3, 1, 1, 1],
    scores=[0.0, 0.0, 0.0, -1.0, -2.0, -3.0],
)


@pytest.mark.parametrize("count", FEWER)
@pytest.mark.parametrize("fields", [BYTE_LEVEL, PIECES], ids=["byte-level", "sentencepiece"])
def test_gguf_tokenizers(tmp_path, fields, count):
    whole = tmp_path / "whole.gguf"
    fields = {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    write_gguf(whole, fields={**fields, "tokenizer.chat_template": "{{ messages }}"})
    assert read_tokenizer(whole)("a").input_ids
    data, rng = whole.read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (tmp_path / "damaged.gguf").write_bytes(damaged(data, rng, head=1700))
        read_tokenizer(tmp_path / "damaged.gguf")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_folders(tmp_path, checkpoint, file, count):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-tied-gqa"), folder)
    data, rng = (folder / file).read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (folder / file).write_bytes(damaged(data, rng, head=3000))
        opened(folder, folder)


@pytest.fixture
def folder(tmp_path, checkpoint):
    """A folder with files of each kind that is read: an index and two shards, options, a tokenizer."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-tied-gqa"), folder)
    arrays = load_file(folder / "model.safetensors")
    shard_of = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(sorted(arrays))}
    for file in set(shard_of.values()):
        save_file({name: arrays[name] for name in arrays if shard_of[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": shard_of}, indent=2))
    options = dict(do_sample=True, temperature=0.5, top_k=7, max_new_tokens=20, eos_token_id=[2, 3], pad_token_id=0)
    options |= dict(bad_words_ids=[[4, 5], [6]], suppress_tokens=[7], repetition_penalty=1.5, bos_token_id=1)
    (folder / "generation_config.json").write_text(json.dumps(options, indent=2))
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("count", FEWER)
def test_indexes_of_shards(folder, count):
    data, rng = (folder / INDEX).read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (folder / INDEX).write_bytes(damaged(data, rng, head=3000))
        opened(folder, folder)


@pytest.mark.parametrize("count", FEWER)
def test_generation_configs(folder, count):
    data, rng = (folder / "generation_config.json").read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (folder / "generation_config.json").write_bytes(damaged(data, rng, head=3000))
        start = time.perf_counter()
        try:
            checkpoint = open_checkpoint(folder)
        except (ValueError, OSError) as error:
            assert str(folder) in str(error) and len(str(error)) < 20_000, error
            continue
        with warnings.catch_warnings(action="ignore"):  # options with a letter of their names changed are not known
            stored = known_options(stored_options(checkpoint, model_config(checkpoint)), checkpoint.path, False)
        try:
            resolve(stored, {}, False, None)
        except (ValueError, TypeError) as error:
            assert str(error).startswith("Received ") and len(str(error)) < 20_000, error
        assert time.perf_counter() - start < 10


@pytest.mark.parametrize("count", FEWER)
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_tokenizers(folder, file, count):
    assert read_tokenizer(folder)("hello there world").input_ids == [1, 0, 2]
    data, rng = (folder / file).read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (folder / file).write_bytes(damaged(data, rng, head=3000))
        read_tokenizer(folder)


# In a process of its own, and with a limit for each file: some that are damaged crash HDF5 itself, or keep it busy.
READ_H5 = """
import pathlib, signal, sys, tracemalloc
from keras_xla.models.sources.tensorflow.folder import h5

for path in sorted(pathlib.Path(sys.argv[1]).glob("*.h5"))[int(sys.argv[2]) :]:
    print(path, flush=True)
    signal.alarm(10)
    tracemalloc.start()
    try:
        for _, tensor in h5(path):
            assert tensor.read().shape == tensor.shape
    except ValueError as error:
        assert str(path) in str(error) and len(str(error)) < 20_000, error
    assert tracemalloc.get_traced_memory()[1] < 30 * 2**20
    tracemalloc.stop()
"""


@pytest.mark.parametrize("count", COUNTS)
def test_h5_files(tmp_path, count):
    names = ["m/model/embed/embeddings:0", "m/model/layers.0/fc1/kernel:0", "m/model/layers.0/fc1/bias:0"]
    with h5py.File(tmp_path / "whole", "w") as file:
        file.attrs["layer_names"] = np.array([b"model", b"top"])
        for layer, held in (("model", names[:2]), ("top", names[2:])):
            file.create_group(layer).attrs["weight_names"] = np.array([name.encode() for name in held])
            for name in held:
                file[layer][name] = np.ones((4, 6)[: 1 if "bias" in name else 2], np.float32)
    data, rng = (tmp_path / "whole").read_bytes(), np.random.default_rng(0)
    for number in range(count):
        (tmp_path / f"{number:04}.h5").write_bytes(damaged(data, rng, head=len(data)))
    read, crashes = 0, 0
    while read < count:
        command = [sys.executable, "-c", READ_H5, str(tmp_path), str(read)]
        done = subprocess.run(command, capture_output=True, text=True)
        read += len(done.stdout.splitlines())
        assert done.returncode <= 0 and done.stdout, done.stdout[-300:] + done.stderr[-3000:]
        crashes += done.returncode < 0
    assert crashes <= count // 50  # which we cannot mend


DEEP = ["[" * 100_000, "{" + '"a":[{' * 50_000, '{"model_type": "llama", "a": ' + "[" * 200 + "]" * 200 + "}"]


@pytest.mark.parametrize("text", DEEP, ids=["lists", "objects", "whole"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", INDEX])
def test_deep_json(folder, file, text):
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match="is not valid JSON") as error:
        open_checkpoint(folder)
    assert str(folder / file) in str(error.value) and len(str(error.value)) < 1000


@pytest.mark.parametrize("text", DEEP, ids=["lists", "objects", "whole"])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_deep_json_of_tokenizers(folder, file, text):
    (folder / file).write_text(text)
    read_tokenizer(folder)


def test_a_deep_header(folder):
    file = folder / "model-00001-of-00002.safetensors"
    file.write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    with pytest.raises(ValueError, match="its header of 100000 bytes is damaged") as error:
        open_checkpoint(folder)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (5, "names 5 as a file; expected a string"),
        (["a"] * 999, r"names \['a', .*\.\.\.\] as a file"),
        ("a\0b", "1 of the 1 files"),
        ("a" * 999, "1 of the 1 files"),
        ("\ud800", "1 of the 1 files"),
        ("subfolder", "1 of the 1 files"),
    ],
    ids=["number", "list", "null", "long", "surrogate", "folder"],
)
def test_indexes_whose_files_have_impossible_names(folder, name, message):
    (folder / "subfolder").mkdir()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        open_checkpoint(folder)
    assert str(folder) in str(error.value) and len(str(error.value)) < 2000


@pytest.mark.parametrize("kind", [None, 5, ["llama"], {"a": 1}], ids=str)
def test_a_model_type_that_is_no_string(folder, kind):
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ValueError, match=r"config\.json has a 'model_type' of the type (NoneType|int|list|dict)"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "changes",
    [
        dict(hidden_size=0),
        dict(hidden_size=-8),
        dict(hidden_size="32"),
        dict(hidden_size=2**40),
        dict(num_hidden_layers=10**9),
        dict(num_attention_heads=0),
        dict(num_key_value_heads=3),
        dict(vocab_size=10**12),
        dict(max_position_embeddings=0),
        dict(max_position_embeddings=None),
        dict(rms_norm_eps="a"),
        dict(rope_scaling=5),
    ],
    ids=str,
)
def test_configs_that_do_not_fit_their_weights(tmp_path, checkpoint, changes):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-tied-gqa"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    opened(folder, folder)
    with pytest.raises(ValueError):
        load_model(open_checkpoint(folder))


@pytest.mark.parametrize(
    ("variant", "key"),
    [("marian", "max_position_embeddings"), ("t5-gated", "relative_attention_max_distance")],
)
@pytest.mark.parametrize("size", [2**20 + 1, 10**7, 10**10])
def test_tables_that_are_computed_have_a_limit(tmp_path, checkpoint, monkeypatch, variant, key, size):
    """No weight has their size, with which it could be compared."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(variant), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: size}))
    monkeypatch.setattr("keras_xla.models.registry.load", lambda *args: pytest.fail("it was built"))
    with pytest.raises(ValueError, match=rf"{key}.*at most 1048576"):
        load_model(open_checkpoint(folder))


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_config_without_what_it_needs_is_refused(tmp_path, checkpoint, missing):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-tied-gqa"), folder)
    config = json.loads((folder / "config.json").read_text())
    del config[missing]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=missing):
        load_model(open_checkpoint(folder))


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_links_to_nothing_are_named(folder, file):
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to("../../blobs/gone")
    with pytest.raises(FileNotFoundError, match=rf"these are links to files that are not there: {file}\."):
        open_checkpoint(str(folder))


def test_links_that_nobody_reads_may_lead_nowhere(folder):
    (folder / ".#config.json").symlink_to("user@host.1:2")
    (folder / "pytorch_model.bin").symlink_to("../../blobs/gone")
    open_checkpoint(str(folder))
