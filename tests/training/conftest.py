"""Every test decides for itself: none sees what another one measured."""

import pytest


@pytest.fixture(autouse=True)
def empty_memory(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KERAS_XLA_CACHE", str(tmp_path_factory.mktemp("decisions")))
