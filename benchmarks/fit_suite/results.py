"""What the raw lines say: times by model, contender and round, and the ratios between contenders of the same round."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from contenders import CONTENDERS, PEERS
from raw import Line

BEST = "the best of four"  # of plain Keras' variants, by the median over the rounds


@dataclass(frozen=True)
class Measure:
    """One of the compared times."""

    title: str
    kind: str
    seconds: Callable[[Line], float]


def whole(line: Line) -> float:
    return line["seconds"]


def steady(line: Line) -> float:
    """Seconds of an epoch, once all is compiled and decided."""
    return statistics.median(line["epochs"][len(line["epochs"]) // 2 :])


def start(line: Line) -> float:
    """Seconds that the fit took beyond its epochs at the steady pace."""
    return line["seconds"] - len(line["epochs"]) * steady(line)


def predict(line: Line) -> float:
    return statistics.median(line["predicts"][1:])


class Results:
    """The lines of a raw file."""

    def __init__(self, lines: Iterable[Line]):
        self.lines = list(lines)
        self.fits = [line for line in self.lines if line["kind"] != "pace"]
        self.models = list(dict.fromkeys(line["model"] for line in self.fits))
        self.kinds = [kind for kind in ("short", "long") if any(line["kind"] == kind for line in self.fits)]

    def measures(self) -> dict[str, Measure]:
        """The compared times by a short name."""
        made = {}
        for kind in self.kinds:
            aim = next(line["aim"] for line in self.fits if line["kind"] == kind)
            made[kind] = Measure(f"Whole fit of about {aim:g} s", kind, whole)
        for kind in self.kinds:
            made[f"steady {kind}"] = Measure(f"Steady epoch of the {kind} fit", kind, steady)
        if self.kinds:
            made["predict"] = Measure(f"Later `predict` after the {self.kinds[-1]} fit", self.kinds[-1], predict)
        return made

    def of(self, model: str, kind: str, contender: str) -> list[Line]:
        """The lines of a contender, round by round."""
        key = (model, kind, contender)
        return [line for line in self.fits if (line["model"], line["kind"], line["contender"]) == key]

    def contenders(self, measure: Measure) -> list[str]:
        """Those with a time, in their usual order."""
        return [name for name in CONTENDERS if any(self.seconds(model, measure, name) for model in self.models)]

    def seconds(self, model: str, measure: Measure, contender: str) -> dict[int, float]:
        """By round; without the rounds in which it was skipped, failed, or was not asked to predict."""
        mine = [line for line in self.of(model, measure.kind, contender) if "seconds" in line]
        return {
            line["round"]: measure.seconds(line) for line in mine if measure.seconds is not predict or line["predicts"]
        }

    def best(self, model: str, measure: Measure) -> str | None:
        """The fastest of plain Keras' variants."""
        times = {name: seconds for name in PEERS if (seconds := self.seconds(model, measure, name))}
        return min(times, key=lambda name: statistics.median(times[name].values())) if times else None

    def ratio(self, model: str, measure: Measure, of: str, to: str) -> list[float]:
        """How many times faster than `to` is `of`, in each round in which both were measured."""
        to = self.best(model, measure) if to == BEST else to
        mine, other = self.seconds(model, measure, of), self.seconds(model, measure, to or "")
        return [other[i] / mine[i] for i in mine if i in other]

    def ratios(self, measure: Measure, of: str, to: str) -> dict[str, float]:
        """The medians over the rounds, by model."""
        known = {model: self.ratio(model, measure, of, to) for model in self.models}
        return {model: statistics.median(values) for model, values in known.items() if values}

    def rounds(self, model: str, kind: str) -> int:
        return len({line["round"] for line in self.fits if (line["model"], line["kind"]) == (model, kind)})


def number(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def spread(values: Iterable[float], shown: Callable[[float], str] = number) -> str:
    """The median, with the lowest and the highest where there are several."""
    values = sorted(values)
    if not values:
        return "-"
    text = shown(statistics.median(values))
    return text if len(values) == 1 else f"{text} ({shown(values[0])} - {shown(values[-1])})"


def times(value: float) -> str:
    return f"{value:.2f}x"


def rows(head: list[str], body: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown."""
    made = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*made, *(f"| {' | '.join(map(str, cells))} |" for cells in body)]
