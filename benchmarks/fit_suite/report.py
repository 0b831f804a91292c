"""The report, made of the raw lines alone.

python benchmarks/fit_suite/report.py benchmarks/results/fit_suite.jsonl > benchmarks/results/fit_suite.md
"""

import pathlib
import statistics
import sys

import caveats
import goals
import losses
import raw
from contenders import CONTENDERS
from results import BEST, Measure, Results, number, rows, spread, start, steady, times

CLOSING = (
    "The whole call: when the last batch is done, TensorFlow can take as long again to close the call's data iterator, "
    "so that these times like to fall on steps of a factor of two."
)
PARTS = (  # what it is, and between which contenders it lies
    ("feeding", "ours_steps", "default"),
    ("several steps a call", "ours_graph", "ours_steps"),
    ("XLA", "ours", "ours_graph"),
    ("all", "ours", "default"),
)


def report(lines: list[raw.Line], name: str) -> str:
    """All that is known so far, in Markdown; `name` is that of the raw file."""
    results = Results(lines)
    made = ["# Keras models trained by `fit`: plain Keras, its variants, keras_xla"]
    made += included("how", head(results, name))
    made += ["", "## Over all models", *included("over-all", summary(results))]
    made += ["", "## Goals", "", *rows(["goal", "measured", ""], goals.said(results))]
    made += ["", "## Read with care", *included("care", [f"- {each}" for each in caveats.said(results)])]
    for short, measure in results.measures().items():
        made += ["", f"## {measure.title}, seconds", *included(short.replace(" ", "-"), table(results, measure))]
        made += ["", CLOSING] if "predict" in measure.title else []
    for each in ("steady short", "short", "steady long", "long"):
        if each in results.measures() and (parts := breakdown(results, results.measures()[each])):
            made += ["", f"## Where the gain comes from: {results.measures()[each].title}", "", *parts]
    made += ["", "## Losses", "", losses.NOTE]
    for kind in results.kinds:
        made += ["", f"### {kind.capitalize()} fits", "", *rows(*losses.table(results, kind))]
    made += ["", "## The fits", "", *fits(results)]
    if said := chosen(results):
        made += ["", "## Ours chose", "", *said]
    return "\n".join(made) + "\n"


def included(name: str, lines: list[str]) -> list[str]:
    """Lines as a section that docs/performance.md can include by its name."""
    return ["", f"<!-- --8<-- [start:{name}] -->", "", *lines, "", f"<!-- --8<-- [end:{name}] -->"]


def head(results: Results, name: str) -> list[str]:
    versions: dict[str, str] = {}
    for line in results.fits:
        versions |= line.get("versions", {})
    days = " - ".join(sorted({line["block"][:10] for line in results.lines}))
    commits = ", ".join(dict.fromkeys(line["commit"] for line in results.fits))
    listed = [f"- {each}: `{CONTENDERS[each].code}`" for each in CONTENDERS if _took_part(results, each)]
    return [
        f"Made of `{name}` by `python benchmarks/fit_suite/report.py`. {days}, "
        f"commit {commits}, {', '.join(f'{each} {v}' for each, v in sorted(versions.items()))}.",
        "",
        *listed,
        "",
        "Every fit in a process of its own, with a seed that is the number of its round; contenders take turns within "
        "a round, and each round starts with another one. A fit's seconds include compiling, tracing and deciding, not "
        "making the model and loading the data. Seconds are medians over the rounds (lowest - highest). A ratio is "
        "made of the two times of one round, and is the median over the rounds; 1.20x: 1.20 times faster. "
        f"{BEST.capitalize()}: default, forced, spe32 or spe32_forced, whichever has the lowest median there.",
    ]


def summary(results: Results) -> list[str]:
    """Geometric means over all models; the README quotes this table."""
    pairs = [("ours", "default"), ("ours", BEST)]
    pairs += [(each, "default") for each in ("forced", "spe32", "spe32_forced", "jax") if _took_part(results, each)]
    head = [
        f"geometric means (lowest - highest of {len(results.models)} models)",
        *(f"{of} to {to}" for of, to in pairs),
    ]
    body = []
    for measure in results.measures().values():
        known = [results.ratios(measure, of, to) for of, to in pairs]
        body.append([measure.title, *(mean(ratios, len(results.models)) for ratios in known)])
    return rows(head, body)


def mean(ratios: dict[str, float], models: int) -> str:
    if not ratios:
        return "-"
    low, high = min(ratios.values()), max(ratios.values())
    missing = f", {len(ratios)} models" * (len(ratios) < models)
    return f"{times(statistics.geometric_mean(ratios.values()))} ({times(low)} - {times(high)}{missing})"


def table(results: Results, measure: Measure) -> list[str]:
    shown = [name for name in results.contenders(measure) if not CONTENDERS[name].partial]
    body = []
    for model in results.models:
        cells = [spread(results.seconds(model, measure, name).values()) for name in shown]
        to_default, to_best = (results.ratio(model, measure, "ours", to) for to in ("default", BEST))
        body.append(
            [model, *cells, spread(to_default, times), results.best(model, measure) or "-", spread(to_best, times)]
        )
    return rows(["model", *shown, "ours to default", "best of four", "ours to that"], body)


def breakdown(results: Results, measure: Measure) -> list[str]:
    """How much each part of keras_xla brings on top of the parts before it; empty where they were not taken apart."""
    if not {"ours_steps", "ours_graph"} <= set(results.contenders(measure)):
        return []
    body = []
    for model in results.models:
        body.append([model, *(spread(results.ratio(model, measure, of, to), times) for _, of, to in PARTS)])
    means = [results.ratios(measure, of, to) for _, of, to in PARTS]
    body.append(["**geometric mean**", *(times(statistics.geometric_mean(r.values())) if r else "-" for r in means)])
    note = (
        "feeding: default to ours in the plain graph, one step a call (the data stay in memory, nothing waits for an "
        "iterator to close); several steps a call: that to ours in the plain graph; XLA: that to ours, with trials and "
        "compilations. Medians over the rounds, so that the product of the three is `all` only nearly."
    )
    return [*rows(["model", *(name for name, _, _ in PARTS)], body), "", note]


def fits(results: Results) -> list[str]:
    """How long the fits were, and how far ours is from what memory allows."""
    body = []
    for model in results.models:
        for kind in results.kinds:
            by = {name: [x for x in results.of(model, kind, name) if "seconds" in x] for name in CONTENDERS}
            if not by["default"]:
                continue
            line = by["default"][0]
            steps = -(-line["rows"] // line["batch_size"])
            cells = [model, kind, line["rows"], line["batch_size"], len(line["epochs"])]
            for name in ("default", "ours"):
                cells.append(spread([1e3 * steady(x) / steps for x in by[name]], "{:.2f}".format))
            cells.append(spread({1e3 * x["step_bytes"] / x["bandwidth"] for x in by["default"]}, "{:.2f}".format))
            cells += [
                number(statistics.median(map(start, by[name]))) if by[name] else "-" for name in ("default", "ours")
            ]
            body.append(cells)
    head = [
        "model",
        "fit",
        "rows",
        "batch",
        "epochs",
        "default, ms a step",
        "ours, ms a step",
        "limit of memory, ms a step",
    ]
    note = (
        "Limit of memory: the batch read once, all weights and the optimizer's state read and written once, at the "
        "bandwidth measured before the same round; what fits in the CPU's caches can be faster. Beyond: the seconds of "
        "the whole fit beyond its epochs at their steady pace."
    )
    return [*rows([*head, "default, s beyond", "ours, s beyond"], body), "", note]


def chosen(results: Results) -> list[str]:
    """What keras_xla reports of its last fit of each model."""
    said = {x["model"]: x["report"] for x in results.fits if x["contender"] == "ours" and x.get("report")}
    return [line for model, text in said.items() for line in (f"### {model}", "", "```", text, "```", "")][:-1]


def _took_part(results: Results, contender: str) -> bool:
    return any(line["contender"] == contender for line in results.fits)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"{__doc__}\nreceived {len(sys.argv) - 1} arguments, expected the raw file alone")
    path = pathlib.Path(sys.argv[1])
    lines = raw.read(path)
    if not any(line["kind"] != "pace" for line in lines):
        sys.exit(f"{path} has no line of a fit: run benchmarks/fit_suite/run.py --raw {path}")
    print(report(lines, path.name), end="")


if __name__ == "__main__":
    main()
