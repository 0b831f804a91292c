"""Imports go one way, and only the backend knows TensorFlow or JAX."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "keras_xla"
BELOW = {
    "training": {"private", "training", "functions", "diagnosis", "backend", "config", "cache_folder", "logger"},
    "generation": {
        "private",
        "generation",
        "functions",
        "engine",
        "models",
        "diagnosis",
        "backend",
        "config",
        "cache_folder",
        "logger",
    },
    "engine": {"private", "engine", "models", "backend", "config"},
    "functions": {"private", "functions", "diagnosis", "backend", "config"},
    "diagnosis": {"private", "diagnosis", "backend"},
    "models": {"private", "models", "backend"},
    "backend": {"private", "backend", "cache_folder", "logger"},
    "private": {"private"},
    "config": {"config"},
    "cache_folder": set(),
    "logger": set(),
    "tracebacks": set(),
    "troubleshooting": {"tracebacks"},
}
EACH = {"troubleshooting", "tracebacks"}  # may import these
# Python's own, of which the underscore does not mean private, or is old enough.
_OPEN = {"_replace", "_fields", "_asdict", "_make", "_getframe", "_initializing"}
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
        if parts[:2] in (["tensorflow", "python"], ["jax", "_src"]):
            assert room == "private", f"{path} imports {name}"
        if parts[0] in ("tensorflow", "jax"):
            assert room in ("backend", "private"), f"{path} imports {name}"
        if parts[0] == "torch":
            raise AssertionError(f"{path} imports torch")
        if room in BELOW and parts[0] == "keras_xla" and len(parts) > 1:
            assert parts[1] in BELOW[room] | EACH, f"{path} imports {name}, which is above it"
        if room == "engine" and parts[:2] == ["keras_xla", "models"]:
            assert not {"convert", "registry", "sources"} & set(parts), f"{path} imports {name}: it knows no checkpoint"


def private_names(tree):
    """The attributes with an underscore that a file takes from what it has not made itself."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    own |= {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and hasattr(node.target, "id")}
    for node in attributes:
        if node.attr not in own:
            yield node.attr
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            yield from (each.value for each in node.args[1:2] if isinstance(each, ast.Constant))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_private_names_of_others_are_in_private_only(path):
    where = path.relative_to(PACKAGE)
    if where.parts[0] == "private":
        return
    names = {name for name in private_names(ast.parse(path.read_text())) if name.startswith("_")}
    names = {name for name in names if name == "__internal__" or not name.endswith("__")}
    assert not names - _OPEN, f"{path} uses {names - _OPEN}; put them into keras_xla/private"


def test_config_needs_the_standard_library_only():
    files = (PACKAGE / "config").glob("*.py")
    roots = {name.split(".")[0] for path in files for name in imports(path)}
    assert roots <= {"collections", "dataclasses", "difflib", "json", "keras_xla", "math", "numbers", "typing"}


def test_no_file_is_longer_than_400_lines():
    assert not [str(p) for p in FILES if len(p.read_text().splitlines()) > 400]
