"""The raw lines of a benchmark, of which its page can be made again: one JSON object each."""

import json
import pathlib
from collections.abc import Iterable


def read(path: pathlib.Path) -> list[dict]:
    """All of a file; none of a file that is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(path: pathlib.Path, lines: Iterable[dict]) -> None:
    """Make a file of these lines alone."""
    path.write_text(_text(lines))


def append(path: pathlib.Path, lines: Iterable[dict]) -> None:
    """Add lines as soon as they are measured: a run that is cut off goes on where it was."""
    with path.open("a") as file:
        file.write(_text(lines))


def _text(lines: Iterable[dict]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
