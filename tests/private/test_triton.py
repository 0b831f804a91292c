"""Triton is kept out of processes that it would end, and out of no others."""

import os
import subprocess
import sys

import pytest

from keras_xla.private.triton import refuse_triton
from tests.test_examples import ROOT

SCRIPT = """
import keras
from keras_xla.private.triton import refuse_triton

refuse_triton()
try:
    import triton
except ImportError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("backend", "version", "printed"),
    [
        ("tensorflow", "3.7.1", "ModuleNotFoundError"),
        ("tensorflow", "4.0", "ModuleNotFoundError"),
        ("tensorflow", "3.6.0", "imported"),
        ("tensorflow", "?", "imported"),
        ("jax", "3.7.1", "imported"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_it_is_refused_where_tensorflow_shows_an_llvm_that_it_would_find(tmp_path, backend, version, printed):
    """The `triton` here is a stand-in: what PyTorch is installed with differs from machine to machine."""
    (tmp_path / "triton.py").write_text("print('imported')")
    (tmp_path / f"triton-{version}.dist-info").mkdir()
    (tmp_path / f"triton-{version}.dist-info" / "METADATA").write_text(f"Name: triton\nVersion: {version}\n")
    env = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [printed]


def test_one_that_is_there_stays(monkeypatch):
    there = object()
    monkeypatch.setitem(sys.modules, "triton", there)
    refuse_triton()
    assert sys.modules["triton"] is there
