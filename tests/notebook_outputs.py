"""Run the notebooks in examples/ as scripts, without Jupyter, and store in them what their cells print.

python -m tests.notebook_outputs             # all of them: some minutes
python -m tests.notebook_outputs training    # examples/training.ipynb alone
"""

import argparse
import ast
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tests import real_models
from tests.test_examples import EXAMPLES, ROOT

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
_CELL = "\n-- cell {} --"
_VALUE = "\n-- value --"
_SHOW = f"""\
def _show(value):
    if value is not None:
        print({_VALUE!r}, repr(value), sep="\\n")
"""


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def as_text(notebook: dict) -> str:
    """A notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def code_cells(notebook: dict) -> dict[str, dict]:
    """The cells with code, by their ids."""
    return {cell["id"]: cell for cell in notebook["cells"] if cell["cell_type"] == "code"}


def source(cell: dict) -> str:
    return "".join(cell["source"])


def printed(outputs: list[dict]) -> str:
    """The text of the outputs of a cell, also where it is the value of the last line."""
    return "".join(line for each in outputs for line in each.get("text") or each["data"]["text/plain"])


def shown(code: str) -> str:
    """A cell that shows the value of its last line, where that is an expression, as a notebook does."""
    last = ast.parse(code).body[-1]
    if not isinstance(last, ast.Expr):
        return code
    lines = code.splitlines()
    first, end = last.lineno - 1, last.end_lineno
    return "\n".join([*lines[:first], "_show(", *lines[first:end], ")", *lines[end:]])


def script(cells: dict[str, dict]) -> str:
    """All cells as one script; it says where each begins."""
    parts = [f"print({_CELL.format(name)!r}, flush=True)\n{shown(source(cell))}" for name, cell in cells.items()]
    return "\n\n".join([_SHOW, *parts])


def run(path: pathlib.Path, folder: pathlib.Path) -> dict[str, list[dict]]:
    """The outputs of each code cell, by the cell's id. Nothing is known of earlier runs."""
    file = folder / f"{path.stem}.py"
    file.write_text(script(code_cells(read(path))), encoding="utf-8")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, EXAMPLES))),  # a notebook imports what lies beside it
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_XLA_CACHE": str(folder / "decisions"),
    }
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, env=env, timeout=600, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    _, *parts = re.split(_CELL.format("(.*)") + "\n", done.stdout.decode())  # as bytes, a bar's \r stays one
    texts = zip(parts[::2], parts[1::2], strict=True)
    return {name: _outputs(cleaned(text), count) for count, (name, text) in enumerate(texts, start=1)}


def _outputs(text: str, count: int) -> list[dict]:
    """What the cell with this number printed, as nbformat 4 has it."""
    before, _, value = text.partition(f"{_VALUE}\n")
    made: list[dict] = []
    if before:
        made.append({"name": "stdout", "output_type": "stream", "text": before.splitlines(keepends=True)})
    if value:
        data = {"text/plain": value.removesuffix("\n").splitlines(keepends=True)}
        made.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return made


def cleaned(text: str) -> str:
    """Text without colours, without what progress bars wrote over, and without the names of this machine's folders."""
    text = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", text)
    text = re.sub(r"[^\n]*[\r\b]", "", text)
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w{{8}}", "/tmp", text)
    return text.replace(str(ROOT), ".").replace(str(pathlib.Path.home()), "~")


def store(path: pathlib.Path) -> None:
    """Run a notebook, and write the outputs into its file."""
    notebook = read(path)
    with tempfile.TemporaryDirectory() as folder:
        outputs = run(path, pathlib.Path(folder))
    for count, (name, cell) in enumerate(code_cells(notebook).items(), start=1):
        cell |= {"execution_count": count, "outputs": outputs[name]}
    path.write_text(as_text(notebook), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [path.stem for path in NOTEBOOKS]
    parser.add_argument("names", nargs="*", metavar="name", help=f"of a notebook: {' or '.join(names)}; default: all")
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"no notebook is called {', '.join(sorted(unknown))}")
    real_models.smollm2()  # downloaded here, so that no output tells of it
    for name in args.names or names:
        store(EXAMPLES / f"{name}.ipynb")
        print(f"examples/{name}.ipynb has new outputs.", flush=True)


if __name__ == "__main__":
    main()
