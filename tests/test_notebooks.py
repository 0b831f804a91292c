"""The notebooks in examples/: their form, and what their cells print, now and as it is stored in them."""

import ast
import itertools
import pathlib
import re
import tempfile

import pytest

from tests.notebook_outputs import NOTEBOOKS, as_text, cleaned, code_cells, printed, read, run, shown, source
from tests.test_examples import ROOT

of_notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
FIELDS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}
OUTPUTS = {"stream", "execute_result"}  # an error is none of them
STORE = "`python -m tests.notebook_outputs` runs the notebooks and stores what they print"


def check_training(out: dict[str, str]) -> None:
    assert "(7500, 64) (297, 64)" in out["data"]
    assert re.search(r"\d+\.\d s, \d+\.\d\d times as fast", out["ours"])
    plain, ours = map(float, re.search(r"first epoch: (\d\.\d+) and (\d\.\d+)", out["ours"]).groups())
    assert abs(plain - ours) < 0.01
    assert "\ndecided\n" in out["report"] and "\nran\n" in out["report"]
    assert "x: (12, 64)" not in out["report"].partition("\ncompiled\n")[2]  # the last batch of an epoch
    evaluated, predicted = re.search(r"evaluate (\d\.\d+), of predict (\d\.\d+)", out["evaluate"]).groups()
    assert evaluated == predicted and float(evaluated) > 0.9
    first, second = out["last-batch"].split("second fit")
    assert "76 rows in the last batch, new compilations: 1\n" in first
    assert first.count("digits.train_step") == 1 and "x: (128, 64)" in first
    assert "new compilations: 0" in second and "train_step" not in second
    assert "digits: everything compiles" in out["explain"] and "hashing (Hashing): " in out["explain"]
    assert "Received a label value of 12 which is outside the valid range of [0, 10)" in out["wrong-label"]
    assert "no error, and the loss is nan" in out["silent"]
    assert "digits: jit_compile='auto' on tensorflow\ndecided" in out["callback"]
    assert "digits: jit_compile='auto' on tensorflow\nnothing has run yet" in out["enable"]
    assert "which runs as plain Keras" in out["off"]


def check_generation(out: dict[str, str]) -> None:
    assert "135 million weights" in out["load"]
    assert "in 4 XLA compilations" in out["warmup"]
    assert "Paris" in out["generate"]
    assert "What is the capital of France?\n    The capital of France is Paris." in out["questions"]
    assert "red" in out["stream"]
    assert "the same alone: True" in out["options"]
    (counted,) = ast.literal_eval(out["stop"].strip())
    assert counted.endswith("8") and "9" not in counted
    paris, rome, count = out["chat"].strip().rsplit("\n", 2)
    assert "Paris" in paris and "Rome" in rome and count == "5 messages so far"  # the system's is one of them
    assert "compiled by the warmup: 4, since then: 0" in out["lengths"]
    assert "in 4 XLA compilations" in out["lengths"]
    paris, rome = map(ast.literal_eval, out["pipeline"].strip().splitlines())
    assert "Paris" in paris and "Rome" in rome
    assert 100 < int(re.search(r"(\d+) MB", out["save"])[1]) < 250  # of 540 in float32
    assert "Paris" in out["loaded"]


CHECKS = {"training": check_training, "generation": check_generation}


@pytest.mark.slow
@of_notebooks
def test_the_cells_run_and_print_what_the_text_says(path, tmp_path):
    CHECKS[path.stem]({name: printed(outputs) for name, outputs in run(path, tmp_path).items()})


@of_notebooks
def test_the_stored_outputs_are_what_the_text_says(path):
    cells = code_cells(read(path))
    silent = {name for name, cell in cells.items() if "print(" in source(cell) or shown(source(cell)) != source(cell)}
    silent -= {name for name, cell in cells.items() if cell["outputs"]}
    assert not silent, f"cells without their outputs: {STORE}"
    CHECKS[path.stem]({name: printed(cell["outputs"]) for name, cell in cells.items()})


@of_notebooks
def test_the_file_is_a_notebook_of_plain_python_without_errors(path):
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    names = [cell["id"] for cell in cells]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    for cell in cells:
        assert set(cell) == FIELDS[cell["cell_type"]], cell["id"]
        if cell["cell_type"] == "code":
            ast.parse(source(cell))
            assert {output["output_type"] for output in cell["outputs"]} <= OUTPUTS, cell["id"]


@of_notebooks
def test_the_file_is_as_the_tool_writes_it(path):
    """Run in the order of its cells, once, and in the same layout: a change shows as a small difference."""
    notebook = read(path)
    counts = [cell["execution_count"] for cell in code_cells(notebook).values()]
    assert counts == list(range(1, len(counts) + 1)), STORE
    assert path.read_text(encoding="utf-8") == as_text(notebook), STORE


@of_notebooks
def test_there_is_a_text_before_each_code(path):
    kinds = [cell["cell_type"] for cell in read(path)["cells"]]
    assert kinds[0] == "markdown" and ("code", "code") not in itertools.pairwise(kinds)


def test_the_last_expression_of_a_cell_is_shown():
    assert shown("x = 1\n(x,\n x)  # twice") == "x = 1\n_show(\n(x,\n x)  # twice\n)"
    assert shown("x = 1") == "x = 1"


def test_the_outputs_of_a_cell(tmp_path):
    cells = [
        {"cell_type": "code", "id": "both", "source": ["print('a')\n", "print('b', end='')\n", "['c',\n", " 'd']"]},
        {"cell_type": "markdown", "id": "text", "source": ["Text"]},
        {"cell_type": "code", "id": "nothing", "source": ["x = 1"]},
        {"cell_type": "code", "id": "value", "source": ["import sys\n", "print('!', file=sys.stderr)\n", "x"]},
        {"cell_type": "code", "id": "none", "source": ["print('a bar', end='\\r')\n", "print('e')"]},
    ]
    (tmp_path / "tiny.ipynb").write_text(as_text({"cells": cells}), encoding="utf-8")
    value = {"execution_count": 1, "metadata": {}, "output_type": "execute_result"}
    assert run(tmp_path / "tiny.ipynb", tmp_path) == {
        "both": [
            {"name": "stdout", "output_type": "stream", "text": ["a\n", "b"]},
            {**value, "data": {"text/plain": ["['c', 'd']"]}},
        ],
        "nothing": [],
        "value": [{**value, "execution_count": 3, "data": {"text/plain": ["1"]}}],
        "none": [{"name": "stdout", "output_type": "stream", "text": ["e\n"]}],
    }


def test_outputs_say_nothing_of_this_machine_and_of_progress():
    with tempfile.TemporaryDirectory() as folder:
        text = f"read {folder}/digits, {ROOT}/examples and {pathlib.Path.home()}/.cache\n"
    assert cleaned(text) == "read /tmp/digits, ./examples and ~/.cache\n"
    assert cleaned("\x1b[1m1/2\x1b[0m ==\b\b\b\r2/2 ====\nnext\n") == "2/2 ====\nnext\n"
