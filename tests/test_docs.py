"""Every Python listing of every page in docs/ runs, in order, as one script a page."""

import pathlib
import re

import pytest

from tests import reference
from tests.test_examples import ROOT, run
from tests.tokenizers import tiny

pytestmark = pytest.mark.slow


def listings(page: pathlib.Path, kind: str = "python") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.DOTALL)


PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if listings(page))  # some have none


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_listings_run(page, tmp_path):
    code = "\n\n".join(listings(page))
    folder = reference.folder("gpt2", tmp_path)
    tiny().save_pretrained(folder)
    script = tmp_path / "page.py"
    script.write_text(code.replace("openai-community/gpt2", folder))
    run(str(script))
