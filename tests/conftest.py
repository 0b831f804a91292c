"""Shared fixtures: checkpoints, tokenizers and a clean view of the compile log."""

import pathlib

import pytest

import keras_xla
from tests import reference


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> pathlib.Path:
    """A folder for the tiny random checkpoints of `tests.reference`."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def checkpoint(checkpoints):
    """`checkpoint("gpt2")`: the Hugging Face folder of a tiny random model."""
    return lambda variant: reference.folder(variant, checkpoints)


@pytest.fixture
def new_events():
    """`new_events()`: what was compiled since the test began."""
    before = len(keras_xla.compile_log())
    return lambda kind=None: [e for e in keras_xla.compile_log()[before:] if kind in (None, e.kind)]


@pytest.fixture(autouse=True)
def empty_memory(tmp_path_factory, monkeypatch):
    """Every test decides for itself: none sees what another one measured."""
    monkeypatch.setenv("KERAS_XLA_CACHE", str(tmp_path_factory.mktemp("decisions")))
