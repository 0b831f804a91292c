"""Triton is kept out of processes that it would end, and out of no others."""

import os
import subprocess
import sys
from importlib import metadata

import keras
import pytest

from keras_xla.private import triton
from tests.test_examples import ROOT

SCRIPT = """
import sys
import keras
from keras_xla.generation.speech.tokens import SpeechTokens
from keras_xla.models.sources.gguf.tokenizer import gguf_tokenizer
from keras_xla.models.sources.safetensors_folder import open_tokenizer
from keras_xla.private.triton import refuse_triton

readers = {
    "none": refuse_triton,
    "folder": lambda: open_tokenizer("."),
    "gguf": lambda: gguf_tokenizer({}, "x.gguf"),
    "language": lambda: SpeechTokens(0, 1, 2, languages={"en": 3}).language_code("German"),
}
for name in sys.argv[1:]:
    sys.modules.pop("triton", None)
    try:
        readers[name]()
    except ValueError:  # there is nothing to read
        pass
    try:
        import triton
    except ImportError as error:
        print(type(error).__name__)
"""
if keras.backend.backend() != "tensorflow":
    pytest.skip("each process that is started here says on which backend", allow_module_level=True)


@pytest.mark.parametrize(
    ("backend", "version", "readers", "printed"),
    [
        ("tensorflow", "3.7.1", ["folder", "gguf", "language"], "ModuleNotFoundError"),
        ("tensorflow", "3.6.0", ["none"], "imported"),
        ("jax", "3.7.1", ["none"], "imported"),
    ],
    ids=["refused", "older", "jax"],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
@pytest.mark.quick("older", "jax")
def test_it_is_refused_where_tensorflow_shows_an_llvm_that_it_would_find(tmp_path, backend, version, readers, printed):
    """The `triton` here is a stand-in: what PyTorch is installed with differs from machine to machine."""
    (tmp_path / "triton.py").write_text("print('imported')")
    (tmp_path / f"triton-{version}.dist-info").mkdir()
    (tmp_path / f"triton-{version}.dist-info" / "METADATA").write_text(f"Name: triton\nVersion: {version}\n")
    env = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    command = [sys.executable, "-c", SCRIPT, *readers]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [printed] * len(readers)


@pytest.mark.parametrize(
    ("version", "finds"), [("3.6.0", False), ("3.7.0", True), ("4.0", True), ("?", False), (None, False)]
)
def test_versions_from_3_7_on_find_another_llvm(version, finds, monkeypatch):
    def version_of(name):
        assert name == "triton"
        if version is None:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(metadata, "version", version_of)
    assert triton._finds_another_llvm() is finds


def test_one_that_is_there_stays(monkeypatch):
    there = object()
    monkeypatch.setattr(triton, "_finds_another_llvm", lambda: True)
    monkeypatch.setattr(triton, "_an_llvm_is_seen", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", there)
    triton.refuse_triton()
    assert sys.modules["triton"] is there
    monkeypatch.delitem(sys.modules, "triton")
    triton.refuse_triton()
    assert sys.modules["triton"] is None
