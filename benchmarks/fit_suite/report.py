"""The report: seconds and ratios of every model, and the geometric means over them."""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

SUITS = 1.05  # XLA suits a model when it makes it at least this much faster
CLOSING = (
    "The whole call: when the last batch is done, TensorFlow can take as long again to close the call's data iterator, "
    "so that these times like to fall on steps of a factor of two."
)
Row = dict  # of one run: its key (model, kind, aim, round, mode), and what the worker measured or "failed"
Seconds = dict[str, float]  # by mode


@dataclass(frozen=True)
class Measure:
    """One of the compared times, and what to know of it."""

    title: str
    kind: str
    seconds: Callable[[Row], float]
    note: str = ""


def steady(row: Row) -> float:
    """Seconds of an epoch, once all is compiled and decided."""
    return statistics.median(row["epochs"][len(row["epochs"]) // 2 :])


def start(row: Row) -> float:
    """Seconds that the fit took beyond its epochs at the steady pace."""
    return row["seconds"] - len(row["epochs"]) * steady(row)


def measures_of(args: argparse.Namespace) -> list[Measure]:
    last = "long" if args.long_rounds else "short"
    made = [
        Measure(f"(a) Whole fit of about {args.short:g} s", "short", lambda row: row["seconds"]),
        Measure(f"(b) Whole fit of about {args.long:g} s", "long", lambda row: row["seconds"]),
        Measure(f"(c) Steady epoch of the {last} fit", last, steady),
        Measure(
            f"(d) Later `predict` after the {last} fit",
            last,
            lambda row: statistics.median(row["predicts"][1:]),
            CLOSING,
        ),
    ]
    return made if args.long_rounds else [made[0], *made[2:]]


RATIOS: dict[str, Callable[[Seconds], float]] = {
    "ours to default": lambda s: s["default"] / s["ours"],
    "forced to default": lambda s: s["default"] / s["forced"],
    "ours to the better": lambda s: min(s["default"], s["forced"]) / s["ours"],
}


def ratio(name: str, seconds: Seconds) -> float | None:
    """How many times faster, or None where a mode is missing."""
    try:
        return RATIOS[name](seconds)
    except KeyError:
        return None


class Results:
    """The rows of a command, by model, kind of fit and mode."""

    def __init__(self, rows: list[Row], args: argparse.Namespace):
        aims = {"short": args.short, "long": args.long}
        self.models, self.modes = args.models, args.modes
        self.rows = [row for row in rows if row["model"] in args.models and row.get("aim") == aims.get(row["kind"])]

    def of(self, model: str, kind: str, mode: str) -> tuple[list[Row], list[Row]]:
        """The runs that ended well, and those that failed."""
        mine = [row for row in self.rows if (row["model"], row["kind"], row.get("mode")) == (model, kind, mode)]
        return [row for row in mine if "failed" not in row], [row for row in mine if "failed" in row]

    def seconds(self, model: str, measure: Measure) -> Seconds:
        """Medians over the rounds; a mode in which no run ended well is not there."""
        runs = {mode: self.of(model, measure.kind, mode)[0] for mode in self.modes}
        return {mode: statistics.median(map(measure.seconds, good)) for mode, good in runs.items() if good}

    def cell(self, model: str, measure: Measure, mode: str) -> str:
        good, failed = self.of(model, measure.kind, mode)
        if not good:
            return "failed" if failed else "-"
        values = sorted(map(measure.seconds, good))
        text = number(statistics.median(values))
        if len(values) > 1:
            text += f" ({number(values[0])} - {number(values[-1])})"
        return text + f", {len(failed)} failed" * bool(failed)


def number(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def report(rows: list[Row], args: argparse.Namespace, command: str) -> str:
    """All that is known so far, in Markdown."""
    results, measures = Results(rows, args), measures_of(args)
    lines = ["# Keras models trained by `fit`: plain Keras, plain Keras with XLA forced, keras_xla", ""]
    lines += [*head(results, args, command), "", *summary(results, measures)]
    for measure in measures:
        lines += ["", f"## {measure.title}, seconds", "", *table(results, measure)]
        lines += ["", measure.note] if measure.note else []
    lines += ["", "## The fits", "", *fits(results)]
    for title, made in (
        ("Failed", failures(results)),
        ("XLA not used", refused(results)),
        ("Ours chose", chosen(results)),
    ):
        lines += ["", f"## {title}", "", *made] if made else []
    return "\n".join(lines) + "\n"


def head(results: Results, args: argparse.Namespace, command: str) -> list[str]:
    good = next((row for row in results.rows if "failed" not in row), {})
    return [
        f"`{command}`",
        "",
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, TensorFlow {good.get('tensorflow')}, Keras "
        f"{good.get('keras')}. default: `model.compile(...)`; forced: `model.compile(..., jit_compile=True)`; ours: "
        '`keras_xla.compile(model, ..., jit_compile="auto")`. Every fit in a process of its own, modes taking turns; '
        f"medians (and range) of {args.rounds} short and {args.long_rounds} long rounds. A fit's seconds include "
        "compiling, tracing and deciding, not making the model and loading the data. 1.20x: 1.20 times faster.",
    ]


def summary(results: Results, measures: list[Measure]) -> list[str]:
    """Geometric means over all models, and over those that XLA suits: in training, and in `predict`."""
    lines = ["| geometric means | models |", "|---|---|"]
    lines = [f"{lines[0]} {' | '.join(RATIOS)} |", lines[1] + "---|" * len(RATIOS)]
    trained, predicted = measures[-2:]
    groups = {
        "all": (results.models, measures),
        "XLA suits in training": (suits(results, trained), measures),
        "XLA suits in `predict`": (suits(results, predicted), [predicted]),
    }
    for group, (models, shown) in groups.items():
        for measure in shown:
            cells = []
            for name in RATIOS:
                known = [r for model in models if (r := ratio(name, results.seconds(model, measure))) is not None]
                missing = f" ({len(known)} of {len(models)})" * (len(known) < len(models))
                cells.append(times(statistics.geometric_mean(known) if known else None) + missing)
            lines.append(f"| {measure.title} | {group} ({len(models)}) | {' | '.join(cells)} |")
    said = [
        f"{group}: {', '.join(models) or 'none so far'}." for group, (models, _) in groups.items() if group != "all"
    ]
    return [*lines, "", f"XLA suits: forced at least {SUITS}x faster than default. {' '.join(said)}"]


def suits(results: Results, measure: Measure) -> list[str]:
    """The models that XLA makes faster than plain Keras; where Keras turned it off, a difference is noise."""
    used = [model for model in results.models if model not in turned_off(results)]
    gains = {model: ratio("forced to default", results.seconds(model, measure)) for model in used}
    return [model for model, gain in gains.items() if gain is not None and gain >= SUITS]


def table(results: Results, measure: Measure) -> list[str]:
    lines = [f"| model | {' | '.join(results.modes)} | {' | '.join(RATIOS)} |"]
    lines.append("|---|" + "---|" * (len(results.modes) + len(RATIOS)))
    for model in results.models:
        seconds = results.seconds(model, measure)
        cells = [results.cell(model, measure, mode) for mode in results.modes]
        cells += [times(ratio(name, seconds)) for name in RATIOS]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return lines


def fits(results: Results) -> list[str]:
    """How long the fits were, what they cost beyond their steady epochs, and where the loss ended."""
    lines = [f"| model | fit | rows | batch | epochs | default, ms a step | {' | '.join(results.modes)} |"]
    lines.append("|---|" + "---|" * (5 + len(results.modes)))
    for model in results.models:
        for kind in ("short", "long"):
            runs = {mode: good for mode in results.modes if (good := results.of(model, kind, mode)[0])}
            if not runs:
                continue
            row = next(iter(runs.values()))[0]
            steps = -(-row["rows"] // row["batch_size"])
            step = f"{1e3 * statistics.median(map(steady, runs['default'])) / steps:.1f}" if "default" in runs else "-"
            cells = [model, kind, row["rows"], row["batch_size"], len(row["epochs"]), step]
            for mode in results.modes:
                good = runs.get(mode)
                cells.append(
                    f"{number(statistics.median(map(start, good)))} s, loss {good[0]['losses'][-1]:.4g}"
                    if good
                    else "-"
                )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    said = (
        "By mode: the seconds beyond the epochs at their steady pace, and the last epoch's loss (of the first round)."
    )
    return [*lines, "", said]


def failures(results: Results) -> list[str]:
    return [
        f"- {row['model']}, {row.get('mode', 'default')}, {row['kind']}: {row['failed']}"
        for row in results.rows
        if "failed" in row
    ]


def turned_off(results: Results) -> list[str]:
    """The models for which Keras turned XLA off although it was forced."""
    rows = [row for row in results.rows if row.get("mode") == "forced" and row.get("jit") is False]
    return list(dict.fromkeys(row["model"] for row in rows))


def refused(results: Results) -> list[str]:
    return [f"- {model}: Keras turned XLA off with a warning, so forced is default" for model in turned_off(results)]


def chosen(results: Results) -> list[str]:
    """What keras_xla reports of its last fit of each model."""
    said = {row["model"]: row["report"] for row in results.rows if row.get("mode") == "ours" and row.get("report")}
    return [line for model, text in said.items() for line in (f"### {model}", "", "```", text, "```", "")][:-1]
