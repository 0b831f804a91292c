"""The package as a stranger gets it: the archives, what they ask for, and what an import of them costs."""

import ast
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import keras_xla
from keras_xla import troubleshooting
from tests.pages import listings
from tests.test_docs import check
from tests.test_examples import ROOT

PACKAGE = ROOT / "keras_xla"
FOR_USERS = ("jax", "audio", "grammar")  # the extras whose packages keras_xla imports
IN_OLDEST = (*FOR_USERS, "kerashub", "transformers4", "demo", "test")
BUILDER = """
import numpy as np
import tensorflow_datasets as tfds


class Rows(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"x": np.float32}))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        return ((i, {"x": i / 2}) for i in range(4))
"""
BUILT = """
from own.rows import Rows

builder = Rows(data_dir="data")
builder.download_and_prepare()
print(sorted(float(row["x"]) for row in builder.as_dataset(split="train")))
"""
TRAINED = """
import json, sys
import keras

def added():
    return sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)

before = set(sys.modules)
import keras_xla
imported = added()
import numpy as np
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
keras_xla.compile(model, "sgd", "mse")
x = np.zeros((64, 3), "float32")
model.fit(x, x[:, :1], validation_data=(x, x[:, :1]), callbacks=[keras_xla.callbacks.CompileReport()], verbose=0)
model.predict(x, verbose=0)
str(keras_xla.model_report(model)), str(keras_xla.explain(model))
print(json.dumps([imported, added(), "tensorflow" in sys.modules]))
"""


def run(*command: str | pathlib.Path, cwd: pathlib.Path, **env: str) -> str:
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> pathlib.Path:
    """A folder with the source archive, and the wheel that was built from that alone."""
    folder, hatch = tmp_path_factory.mktemp("dist"), [sys.executable, "-m", "hatchling", "build", "-d"]
    run(*hatch, folder, "-t", "sdist", cwd=ROOT)
    (archive,) = folder.glob("keras_xla-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    run(*hatch, folder, "-t", "wheel", cwd=folder / archive.name.removesuffix(".tar.gz"))
    return folder


@pytest.fixture(scope="module")
def wheel(archives) -> pathlib.Path:
    (wheel,) = archives.glob("keras_xla-*.whl")
    return wheel


@pytest.fixture(scope="module")
def site(wheel) -> pathlib.Path:
    """A folder where the wheel is installed alone."""
    folder = wheel.parent / "site"
    run(sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--target", folder, wheel, cwd=wheel.parent)
    return folder


@pytest.fixture(scope="module")
def python_of_a_stranger(wheel) -> pathlib.Path:
    """The Python of a new environment, with the wheel and what the wheel asks for."""
    python = wheel.parent / "environment" / "bin" / "python"
    run(sys.executable, "-m", "venv", wheel.parent / "environment", cwd=wheel.parent)
    run(python, "-m", "pip", "--quiet", "install", "-c", ROOT / ".ci" / "constraints.txt", wheel, cwd=wheel.parent)
    return python


def third_party_imports():
    """The names that keras_xla imports from elsewhere, each with a file that does."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"keras_xla"}:
                yield name, path.relative_to(ROOT)


@pytest.fixture
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared_by(project: dict, *extras: str) -> list[Requirement]:
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(line) for each in lists for line in each]


def test_what_is_imported_is_declared(project):
    """Another package may bring it along today, and no longer tomorrow."""
    declared = {canonicalize_name(each.name) for each in declared_by(project, *FOR_USERS)}
    distributions = metadata.packages_distributions()
    missing = {
        name: str(path)
        for name, path in third_party_imports()
        if not declared & {canonicalize_name(each) for each in distributions.get(name, [name])}
    }
    assert not missing


def test_the_oldest_environment_has_the_lowest_versions_that_are_declared(project):
    lines = (ROOT / ".ci" / "oldest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    for each in declared_by(project, *IN_OLDEST):
        (lowest,) = (Version(part.version) for part in each.specifier if part.operator in (">=", "=="))
        assert Version(pins[each.name]) == lowest, each


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_an_import_and_training_bring_nothing_that_they_do_not_use(backend, tmp_path):
    out = run(sys.executable, "-c", TRAINED, cwd=tmp_path, KERAS_BACKEND=backend, PYTHONPATH=str(ROOT))
    imported, trained, tensorflow = json.loads(out.splitlines()[-1])
    assert imported == ["keras_xla"]
    assert set(trained) <= {"keras_xla", backend, "jaxlib"}
    assert tensorflow == (backend == "tensorflow")


def test_the_wheel_is_complete_and_has_a_command(site, tmp_path):
    inside = {path.relative_to(site) for path in (site / "keras_xla").rglob("*.py")}
    assert inside == {path.relative_to(ROOT) for path in PACKAGE.rglob("*.py")}
    (tmp_path / "script.py").write_text("import sys, keras_xla\nprint(sys.argv[1:], keras_xla.__file__)\n")
    command = [sys.executable, site / "bin" / "keras-xla", "--quiet", "script.py", "7"]
    printed = run(*command, cwd=tmp_path, PYTHONPATH=str(site))
    assert printed.split() == ["['7']", str(site / "keras_xla" / "__init__.py")]
    told = run(site / "bin" / "keras-xla", "--troubleshoot", "prompt-is-empty", cwd=tmp_path, PYTHONPATH=str(site))
    assert told.strip() == troubleshooting.answer("prompt-is-empty")


def test_the_page_on_citing_names_this_version(project):
    page = (ROOT / "docs" / "citation.md").read_text().replace("\\_", "_")
    assert f"title   = {{keras_xla: {project['description'].rstrip('.')}}}" in page
    assert f"version = {{{keras_xla.__version__}}}" in page
    assert f"license = {{{project['license']}}}" in page


SNIPPETS = pytest.mark.parametrize("listing", listings(ROOT / "README.md"), ids=["train", "generate", "pipeline"])


@SNIPPETS
@pytest.mark.quick("train")
def test_each_snippet_of_the_readme_runs_with_the_wheel(listing, site, tmp_path):
    check([listing], tmp_path, packages=str(site))


@SNIPPETS
@pytest.mark.slow
def test_each_snippet_of_the_readme_runs_alone_with_what_the_wheel_asks_for(listing, python_of_a_stranger, tmp_path):
    """Whoever copies one of them need not copy the others."""
    check([listing], tmp_path, python_of_a_stranger, packages="")


@pytest.mark.slow
def test_the_guide_to_datasets_runs_with_what_the_wheel_asks_for(python_of_a_stranger, tmp_path):
    check(listings(ROOT / "docs" / "datasets.md"), tmp_path, python_of_a_stranger, packages="")


@pytest.mark.slow
def test_a_builder_in_a_package_runs_with_what_the_wheel_asks_for(python_of_a_stranger, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "own" / "rows.py").write_text(BUILDER)
    out = run(python_of_a_stranger, "-c", BUILT, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert out.splitlines()[-1] == "[0.0, 0.5, 1.0, 1.5]"
