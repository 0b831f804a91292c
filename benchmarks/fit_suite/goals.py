"""The goals of the suite, computed."""

import statistics
from dataclasses import dataclass

from results import BEST, Measure, Results, times


@dataclass(frozen=True)
class Goal:
    """At least so many times faster than another contender.

    Attributes:
        measure: The short name of the compared time.
        to: The other contender.
        least: The ratio.
        each: Whether every model has to reach it, or the geometric mean over all.
    """

    measure: str
    to: str
    least: float
    each: bool


GOALS = (
    Goal("short", BEST, 0.97, each=True),
    Goal("long", BEST, 0.97, each=True),
    Goal("short", "default", 1.3, each=False),
    Goal("long", "default", 1.5, each=False),
    Goal("steady long", "default", 1.6, each=False),
    Goal("long", BEST, 1.15, each=False),
)


def said(results: Results) -> list[list[str]]:
    """The goal, what was measured, and whether it is met."""
    measures = results.measures()
    return [_said(results, goal, measures[goal.measure]) for goal in GOALS if goal.measure in measures]


def _said(results: Results, goal: Goal, measure: Measure) -> list[str]:
    ratios = results.ratios(measure, "ours", goal.to)
    how = "every model" if goal.each else "geometric mean"
    text = f"{measure.title}, ours to {goal.to}, {how}: at least {times(goal.least)}"
    if not ratios:
        return [text, "-", "not measured"]
    part = f" ({len(ratios)} of {len(results.models)} models)" * (len(ratios) < len(results.models))
    if not goal.each:
        mean = statistics.geometric_mean(ratios.values())
        return [text, times(mean) + part, "met" if mean >= goal.least else "NOT met"]
    below = {model: ratio for model, ratio in ratios.items() if ratio < goal.least}
    lowest = min(ratios, key=ratios.get)
    found = f"lowest {times(ratios[lowest])} ({lowest}){part}"
    return [text, found, "NOT met: " + ", ".join(f"{m} {times(r)}" for m, r in below.items()) if below else "met"]
