"""What is known from earlier runs, as a table: `python -m keras_xla --decisions`."""

import time
from collections.abc import Sequence

from keras_xla.training.decide.decisions import Entry
from keras_xla.training.reports.table import milliseconds, table

_HEADER = ("step", "way", "graph ms", "xla ms", "compile s", "age", "for which batches, and on what")
_UNITS = (("d", 24 * 3600), ("h", 3600), ("min", 60), ("s", 1))


def listed(entries: Sequence[Entry]) -> str:
    """One row for each."""
    if not entries:
        return "nothing has been measured yet"
    return table(_HEADER, [_row(known) for known in entries], numbers=(2, 3, 4, 5))


def _row(known: Entry) -> tuple[str, ...]:
    times = known.times
    tried = "failed" if times.failed else milliseconds(times.tried and 1e3 * times.tried)
    place = [known.key.batch, *([times.failed] if times.failed else []), known.key.device, known.key.versions]
    graph, compiling = milliseconds(1e3 * times.graph), f"{times.compile:.1f}" if times.compile else "-"
    return known.name, known.chosen, graph, tried, compiling, _age(time.time() - times.time), "\n".join(place)


def _age(seconds: float) -> str:
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= size), _UNITS[-1])
    return f"{max(seconds, 0) / size:.0f} {unit}"
