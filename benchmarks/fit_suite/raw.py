"""The raw lines: one JSON object a run, appended in blocks, from which the report can be made again.

A block is one round of one model: all contenders in turns. It is written when the last of them has run, so that what is
in the file was measured side by side. Where a block was measured again, the last one counts.
"""

import json
import pathlib
from collections.abc import Iterable

Line = dict  # of one run: model, kind, round, contender ..., and what the worker measured, "failed" or "skipped"


def read(path: pathlib.Path | None) -> list[Line]:
    """The lines of a file that count, in the order of the file; none of a file that is not there."""
    if path is None or not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    last = {_block(line): line["block"] for line in lines}
    return [line for line in lines if last[_block(line)] == line["block"]]


def append(path: pathlib.Path, lines: Iterable[Line]) -> None:
    """Write the lines of one block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def of_block(lines: Iterable[Line], model: str, kind: str, number: int) -> list[Line]:
    """The lines of one round of one model."""
    return [line for line in lines if _block(line) == (model, kind, number)]


def _block(line: Line) -> tuple[str, str, int]:
    return line["model"], line["kind"], line["round"]
