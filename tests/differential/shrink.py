"""The smallest scenario that still differs in the same place."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.differential.scenario import Scenario

KEPT = ("entry", "way")  # fields that say what is tested


def smallest(scenario: Scenario, compared: Callable, tell: Callable) -> Scenario:
    """Leaves out, and puts back to usual values, what makes no difference.

    Args:
        compared: Gives the differences of a scenario.
        tell: Is told of every step.
    """
    wanted = _place(compared(scenario))
    if wanted is None:
        return scenario
    again = True
    while again:
        again = False
        for other in _smaller(scenario):
            if _place(compared(other)) == wanted:
                tell(repr(other))
                scenario, again = other, True
                break
    return scenario


def _place(found: list[str]) -> str | None:
    """What kind of difference it is, whatever the numbers are."""
    return re.sub(r"[\d.]+(e-?\d+)?", "", found[-1].split(":")[0]) if found else None


def _smaller(value: Any) -> Iterator[Any]:
    """Values like this one with less in one place, those with the most gone first."""
    if isinstance(value, tuple):
        for number in reversed(range(len(value))):
            yield value[:number] + value[number + 1 :]
        for number, each in enumerate(value):
            yield from ((*value[:number], other, *value[number + 1 :]) for other in _smaller(each))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            now = getattr(value, field.name)
            if now == field.default:
                continue
            if field.name not in KEPT and not isinstance(now, tuple):
                yield dataclasses.replace(value, **{field.name: field.default})
            yield from (dataclasses.replace(value, **{field.name: other}) for other in _smaller(now))
