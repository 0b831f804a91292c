"""Imports go one way, and only the backend knows TensorFlow or JAX."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "keras_xla"
BELOW = {
    "training": {"training", "functions", "diagnosis", "backend", "config"},
    "generation": {"generation", "functions", "engine", "models", "diagnosis", "backend", "config"},
    "engine": {"engine", "models", "backend", "config"},
    "functions": {"functions", "diagnosis", "backend", "config"},
    "diagnosis": {"diagnosis", "backend"},
    "models": {"models", "backend"},
    "backend": {"backend"},
    "config": set(),
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(path):
        parts = name.split(".")
        assert parts[:2] != ["keras", "src"], f"{path} imports keras.src"
        if parts[0] in ("tensorflow", "jax"):
            assert room == "backend", f"{path} imports {name}"
        if parts[0] == "torch":
            raise AssertionError(f"{path} imports torch")
        if room in BELOW and parts[0] == "keras_xla" and len(parts) > 1:
            assert parts[1] in BELOW[room], f"{path} imports {name}, which is above it"


def test_config_needs_the_standard_library_only():
    roots = {name.split(".")[0] for name in imports(PACKAGE / "config.py")}
    assert roots <= {"collections", "dataclasses", "difflib", "math", "numbers", "typing"}


def test_no_file_is_longer_than_400_lines():
    assert not [str(p) for p in FILES if len(p.read_text().splitlines()) > 400]
