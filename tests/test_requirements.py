"""A missing or wrong version is named, with the command that installs the right one."""

from importlib import metadata

import pytest

from keras_xla.backend.requirements import require


def test_what_is_installed_here_is_right():
    require("transformers", "reading configs")
    require("ml_dtypes", "reading weights")  # PyPI's ml-dtypes


@pytest.mark.parametrize("version", ["4.30.2", "6.0.0"])
def test_a_wrong_version(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(ImportError) as error:
        require("transformers", "Reading configs")
    text = str(error.value)
    assert f"Reading configs needs transformers<6,>=4.57.1, and version {version} is installed" in text
    assert "python -m pip install 'transformers<6,>=4.57.1'" in text


def test_a_missing_package(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ImportError, match=r"gguf>=0.17, and it is not installed. Run: python -m pip install 'gguf"):
        require("gguf", "Reading a GGUF file")


def test_without_an_installed_keras_xla_nothing_is_known(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    require("transformers", "Reading configs")
