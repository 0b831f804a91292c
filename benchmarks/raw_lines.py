"""The raw lines of a benchmark, of which its page can be made again: one JSON object each."""

import json
import pathlib
from collections.abc import Iterable


def read(path: pathlib.Path) -> list[dict]:
    """All of a file; none of a file that is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def of_the_same(path: pathlib.Path, known: dict) -> list[dict]:
    """Those that are there, of which a run that was cut off goes on; all are of the same facts, but for the date."""
    lines = read(path)
    for name, value in known.items():
        others = [line.get(name) for line in lines if name != "date" and line.get(name) != value]
        if others:
            raise SystemExit(f"{path} has lines of {name} {others[0]!r}, not {value!r}. Name another file with --raw.")
    return lines


def write(path: pathlib.Path, lines: Iterable[dict]) -> None:
    """Make a file of these lines alone."""
    path.write_text(_text(lines))


def append(path: pathlib.Path, lines: Iterable[dict]) -> None:
    """Add lines as soon as they are measured: a run that is cut off goes on where it was."""
    with path.open("a") as file:
        file.write(_text(lines))


def publish(path: pathlib.Path, page: str) -> None:
    """Show the page that was made of a file's lines, and put it beside them."""
    print(page)
    path.with_suffix(".md").write_text(page)


def _text(lines: Iterable[dict]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
