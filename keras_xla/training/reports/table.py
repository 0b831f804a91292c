"""Plain text that fits the terminal: aligned tables, and paragraphs with a hanging indent."""

import re
import shutil
import textwrap
from collections.abc import Sequence

_LEAST = 24  # columns that wrapped text needs to be readable
_INDENT = " " * 6
_SHAPE = r"\(['.\dNone, ]*\)"
_TENSOR = re.compile(rf"\S+: {_SHAPE}(?: (?:-> {_SHAPE}|\w*\d+\b))*")  # such as "x: (8, 4) float32"; stays in one line


def table(header: Sequence[str], rows: Sequence[Sequence], numbers: Sequence[int]) -> str:
    """Rows under a header; the last column is text, which is wrapped where the terminal ends.

    A newline in it begins a new line there. The columns in `numbers` are aligned to the right.
    """
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]

    def line_of(cells):
        aligned = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        return hanging("  ".join(["", *aligned, ""]), cells[-1])

    return "\n".join(map(line_of, lines))


def hanging(head: str, text: str) -> str:
    """The text after a head, its further lines indented so that they begin below its first.

    Where the terminal is too narrow for that, the text begins below the head.
    """
    columns = shutil.get_terminal_size().columns
    heads = [head, " " * len(head)]
    if columns - len(head) < _LEAST:
        heads, columns = [head.rstrip() + "\n" + _INDENT, _INDENT], max(columns, _LEAST)
    width = columns - len(heads[1])

    def whole(tensor):  # textwrap does not break at such spaces
        return tensor[0].replace(" ", "\xa0") if len(tensor[0]) <= width else tensor[0]

    paragraphs = _TENSOR.sub(whole, text).split("\n")
    lines = [line for paragraph in paragraphs for line in textwrap.wrap(paragraph, width, break_on_hyphens=False)]
    lines = [heads[i > 0] + line for i, line in enumerate(lines or [""])]
    return "\n".join(line.replace("\xa0", " ").rstrip() for line in lines)


def milliseconds(value: float | None) -> str:
    """Such as `"0.81"`; `"-"` where there is none."""
    return "-" if not value else f"{value:.2f}"
