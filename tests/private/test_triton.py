"""Triton is kept out of processes that it would end, and out of no others."""

import os
import subprocess
import sys

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
try:
    readers[sys.argv[1]]()
except ValueError:  # there is nothing to read
    pass
try:
    import triton
except ImportError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("backend", "version", "reader", "printed"),
    [
        ("tensorflow", "3.7.1", "folder", "ModuleNotFoundError"),
        ("tensorflow", "3.7.1", "gguf", "ModuleNotFoundError"),
        ("tensorflow", "4.0", "language", "ModuleNotFoundError"),
        ("tensorflow", "3.6.0", "none", "imported"),
        ("tensorflow", "?", "none", "imported"),
        ("jax", "3.7.1", "none", "imported"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_it_is_refused_where_tensorflow_shows_an_llvm_that_it_would_find(tmp_path, backend, version, reader, printed):
    """The `triton` here is a stand-in: what PyTorch is installed with differs from machine to machine."""
    (tmp_path / "triton.py").write_text("print('imported')")
    (tmp_path / f"triton-{version}.dist-info").mkdir()
    (tmp_path / f"triton-{version}.dist-info" / "METADATA").write_text(f"Name: triton\nVersion: {version}\n")
    env = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    command = [sys.executable, "-c", SCRIPT, reader]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [printed]


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
