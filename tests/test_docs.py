"""Every Python listing of the README and of every page in docs/ runs, and prints what the page says."""

import os
import pathlib
import subprocess
import sys
import tarfile

import pytest

from tests.pages import Listing, differences, listings, script
from tests.test_examples import ROOT

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if listings(page))  # some have none
SNIPPETS = listings(ROOT / "README.md")  # whoever copies one of them need not copy the others


def check(found: list[Listing], folder: pathlib.Path, packages: pathlib.Path) -> None:
    """Run listings as one script in an empty folder, with the keras_xla of `packages`."""
    path = folder / "page.py"
    path.write_text(script(found, folder), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(packages), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1200, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert differences(found, done.stdout) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_listings_run_and_print_what_the_page_says(page, tmp_path):
    check(listings(page), tmp_path, ROOT)


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> pathlib.Path:
    """A folder with the source archive, and the wheel that was built from that alone."""
    folder, hatch = tmp_path_factory.mktemp("dist"), [sys.executable, "-m", "hatchling", "build", "-d"]
    subprocess.run([*hatch, folder, "-t", "sdist"], check=True, timeout=300, cwd=ROOT, capture_output=True)
    (archive,) = folder.glob("keras_xla-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    subprocess.run([*hatch, folder, "-t", "wheel"], check=True, timeout=300, cwd=source, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def installed(archives) -> pathlib.Path:
    """A folder into which the wheel was installed, and nothing else."""
    (wheel,) = archives.glob("keras_xla-*.whl")
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--target"]
    subprocess.run([*pip, archives / "site", wheel], check=True, timeout=600)
    return archives / "site"


@pytest.mark.slow
@pytest.mark.parametrize("listing", SNIPPETS, ids=["train", "generate", "pipeline"])
def test_each_snippet_of_the_readme_runs_alone_from_the_installed_wheel(listing, installed, tmp_path):
    check([listing], tmp_path, installed)


def test_the_wheel_is_complete_and_has_a_command(installed, tmp_path):
    inside = {path.relative_to(installed) for path in (installed / "keras_xla").rglob("*.py")}
    assert inside == {path.relative_to(ROOT) for path in (ROOT / "keras_xla").rglob("*.py")}
    (tmp_path / "script.py").write_text("import sys, keras_xla\nprint(sys.argv[1:], keras_xla.__file__)\n")
    env = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, installed / "bin" / "keras-xla", "--quiet", "script.py", "7"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=True, timeout=300)
    assert done.stdout.split() == ["['7']", str(installed / "keras_xla" / "__init__.py")]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
