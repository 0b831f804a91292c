"""Every Python listing of the README and of every page in docs/ runs, and prints what the page says."""

import dataclasses
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.config import GenerationOptions
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.pipeline import SpeechPipeline
from keras_xla.generation.text.options import TextOptions
from tests.pages import Listing, differences, listings, script
from tests.test_examples import ROOT

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if listings(page))  # some have none


def check(
    found: list[Listing],
    folder: pathlib.Path,
    python: str | pathlib.Path = sys.executable,
    packages: str = str(ROOT),
) -> None:
    """Run listings as one script in an empty folder, with the keras_xla of `packages`, or of `python` if that is ""."""
    path = folder / "page.py"
    path.write_text(script(found, folder), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": packages, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [str(python), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1200, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert differences(found, done.stdout) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_listings_run_and_print_what_the_page_says(page, tmp_path):
    check(listings(page), tmp_path)


def names_of(options: type) -> set[str]:
    return {field.name for field in dataclasses.fields(options) if not field.name.startswith("_")}


OF_CALLS = {
    each.name
    for method in (XLAGenerationLayer.generate, SpeechPipeline.transcribe)
    for each in inspect.signature(method).parameters.values()
    if each.default is not inspect.Parameter.empty
    and each.name not in ("inputs", "goes_on")  # the layer passes that in graphs
}


@pytest.mark.parametrize(
    ("names", "layer"),
    [
        (names_of(GenerationOptions) | names_of(TextOptions), "layer|t5|counting"),
        (names_of(SpeechOptions), "whisper"),
        (OF_CALLS, "layer|whisper"),
    ],
    ids=["text", "speech", "calls"],
)
def test_every_option_has_an_example(names, layer):
    page, guide = ROOT / "docs" / "options.md", ROOT / "docs" / "generation.md"
    found = [listing.code for listing in (*listings(page), *listings(guide))]
    code = "\n".join(each for each in found if re.search(rf"\b({layer})\.", each))
    assert names - set(re.findall(r"\b(\w+)=", code)) == set()
    assert names - set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8"))) == set()  # with a link, if no listing


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_fences_are_of_a_form_that_the_site_shows():
    """mkdocs takes a block whose first line has a second bare word for text."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    bad = [
        f"{page.name}: {line}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.lstrip().startswith("```") and not re.fullmatch(r' *```(\w+( title="[^"]+")?)?', line)
    ]
    assert not bad
