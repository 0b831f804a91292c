"""A cell of a table for what several rounds have measured."""

import statistics
from collections.abc import Iterable


def middle(values: Iterable[float], form: str = ".2f") -> str:
    """The median, and in brackets the extremes; a single value alone."""
    values = list(values)
    extremes = f" ({min(values):{form}} - {max(values):{form}})" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{extremes}"
