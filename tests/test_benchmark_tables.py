"""What the README says of speed was measured: its tables are in the results, and those are made of raw lines."""

import importlib
import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests.benchmarks.lines import block, rounds
from tests.test_examples import ROOT

RESULTS = ROOT / "benchmarks" / "results"
REPORT = ROOT / "benchmarks" / "fit_suite" / "report.py"
README = (ROOT / "README.md").read_text()


def quoted(text: str) -> list[tuple[str, str]]:
    """The file that a comment in front of a table names, and the table."""
    return re.findall(r"<!-- table of (\S+) -->\n\n((?:\|.*\n)+)", text)


def test_the_tables_that_the_readme_quotes_are_in_the_results():
    tables = quoted(README)
    assert tables
    for path, table in tables:
        assert table in (ROOT / path).read_text(), f"{path} has another table: copy it into README.md"


def test_all_ratios_of_the_readme_are_in_the_results():
    figures = set(re.findall(r"\d+\.\d+x", README))
    assert figures
    results = "".join(path.read_text() for path in RESULTS.glob("*.md"))
    assert not figures - set(re.findall(r"\d+\.\d+x", results))


def not_made_of_their_lines(folder: pathlib.Path) -> list[str]:
    """The results beside whose raw lines the report says something else."""
    found = []
    for raw in sorted(folder.glob("*suite.jsonl")):
        made = subprocess.run([sys.executable, REPORT, raw], capture_output=True, text=True, check=True).stdout
        if raw.with_suffix(".md").read_text() != made:
            found.append(raw.stem)
    return found


def test_results_are_what_the_report_makes_of_the_raw_lines_beside_them():
    assert not_made_of_their_lines(RESULTS) == []


# Of what is in the results: a page of fits has another report, and that of guesses asks how many there were.
MEASURED = sorted({raw.stem for raw in RESULTS.glob("*.jsonl")} - {"fit_suite", "prompt_lookup"})


@pytest.mark.parametrize("name", MEASURED)
def test_so_are_those_of_generation(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    raw = RESULTS / f"{name}.jsonl"
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    script = importlib.import_module(name.removesuffix("_before"))
    assert script.report(lines) == raw.with_suffix(".md").read_text()


def test_the_tables_of_generation_are_among_them():
    assert {"decode", "speech", "quantization"} <= set(MEASURED)


def test_a_figure_changed_by_hand_is_found(tmp_path):
    raw = tmp_path / "suite.jsonl"
    raw.write_text("".join(json.dumps(line) + "\n" for line in rounds("mlp", block(10, 5))))
    made = subprocess.run([sys.executable, REPORT, raw], capture_output=True, text=True, check=True).stdout
    (tmp_path / "suite.md").write_text(made)
    assert not_made_of_their_lines(tmp_path) == []
    (tmp_path / "suite.md").write_text(made.replace("2.00x", "2.10x", 1))
    assert not_made_of_their_lines(tmp_path) == ["suite"]
