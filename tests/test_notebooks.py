"""The notebooks in examples/: their form, and what their cells print, run as one script without Jupyter."""

import ast
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.test_examples import EXAMPLES, ROOT

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
of_notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
FIELDS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}
OUTPUTS = {"stream", "execute_result", "display_data"}  # an error is none of them
_MARK = "\n-- cell {} --"
_SHOW = """\
def _show(value):
    if value is not None:
        print(repr(value))
"""


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def code(path: pathlib.Path) -> dict[str, str]:
    """The code of each code cell, by the cell's id."""
    return {cell["id"]: "".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code"}


def script(cells: dict[str, str]) -> str:
    """All cells as one script; it says where each begins."""
    parts = [f"print({_MARK.format(name)!r}, flush=True)\n{shown(source)}" for name, source in cells.items()]
    return "\n\n".join([_SHOW, *parts])


def shown(source: str) -> str:
    """A cell that shows the value of its last line, where that is an expression, as a notebook does."""
    last = ast.parse(source).body[-1]
    if not isinstance(last, ast.Expr):
        return source
    lines = source.splitlines()
    first, end = last.lineno - 1, last.end_lineno
    return "\n".join([*lines[:first], "_show(", *lines[first:end], ")", *lines[end:]])


def printed(path: pathlib.Path, folder: pathlib.Path) -> dict[str, str]:
    """What each code cell prints, by the cell's id."""
    file = folder / f"{path.stem}.py"
    file.write_text(script(code(path)), encoding="utf-8")
    packages = os.pathsep.join(map(str, (ROOT, EXAMPLES)))  # a notebook imports what lies beside it
    env = {**os.environ, "PYTHONPATH": packages, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr[-3000:]
    _, *parts = re.split(r"^-- cell (.*) --\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def check_training(out: dict[str, str]) -> None:
    assert "(7185, 64) (360, 64)" in out["data"]
    assert re.search(r"\d+\.\d s, \d+\.\d\d times as fast", out["ours"])
    plain, ours = map(float, re.search(r"first epoch: (\d\.\d+) and (\d\.\d+)", out["ours"]).groups())
    assert abs(plain - ours) < 0.01
    assert "\ndecided\n" in out["report"] and "\nran\n" in out["report"]
    assert "x: (17, 64)" not in out["report"].partition("\ncompiled\n")[2]  # the last batch of an epoch
    evaluated, predicted = re.search(r"evaluate (\d\.\d+), of predict (\d\.\d+)", out["evaluate"]).groups()
    assert evaluated == predicted and float(evaluated) > 0.9
    first, second = out["last-batch"].split("second fit")
    assert "85 rows in the last batch, new compilations: 1\n" in first
    assert first.count("digits.train_step") == 1 and "x: (100, 64)" in first
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
    CHECKS[path.stem](printed(path, tmp_path))


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
            ast.parse("".join(cell["source"]))
            assert {output["output_type"] for output in cell["outputs"]} <= OUTPUTS, cell["id"]


@of_notebooks
def test_there_is_a_text_before_each_code(path):
    kinds = [cell["cell_type"] for cell in read(path)["cells"]]
    assert kinds[0] == "markdown" and ("code", "code") not in itertools.pairwise(kinds)


def test_the_last_expression_of_a_cell_is_shown():
    assert shown("x = 1\n(x,\n x)  # twice") == "x = 1\n_show(\n(x,\n x)  # twice\n)"
    assert shown("x = 1") == "x = 1"
