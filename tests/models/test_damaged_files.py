"""Damaged checkpoints: a clear error each, no hang, and no memory beyond the files' size."""

import json
import shutil
import time
import tracemalloc

import numpy as np
import pytest

from keras_xla.models.registry import load_model
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


COUNTS = [100, pytest.param(3400, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
def test_gguf_files(tmp_path, count):
    whole = tmp_path / "whole.gguf"
    write_gguf(whole)
    data, rng = whole.read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (tmp_path / "damaged.gguf").write_bytes(damaged(data, rng, head=3000))
        opened(tmp_path / "damaged.gguf", tmp_path)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_folders(tmp_path, checkpoint, file, count):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-tied-gqa"), folder)
    data, rng = (folder / file).read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        (folder / file).write_bytes(damaged(data, rng, head=3000))
        opened(folder, folder)


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


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_config_without_what_it_needs_is_refused(tmp_path, checkpoint, missing):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("llama-tied-gqa"), folder)
    config = json.loads((folder / "config.json").read_text())
    del config[missing]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=missing):
        load_model(open_checkpoint(folder))
