"""The plots of the README, of the tables in results: `python benchmarks/plots.py`. Matplotlib is in the extra docs."""

import pathlib
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
COLOURS = {"plain": "#9aa3b2", "forced": "#e0a458", "ours": "#3f51b5", "jax": "#7986cb"}


def table(text: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table behind a heading, by the names of their columns."""
    lines = text[text.index(heading) :].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:]]
    end = next((i for i, line in enumerate(lines[first:]) if not line.startswith("|")), len(cells))
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:end]]


def number(cell: str) -> float:
    """The first number of a cell."""
    return float(re.search(r"\d+(\.\d+)?", cell)[0])


def training(path: pathlib.Path) -> None:
    """How many times as fast as `model.compile(...)` a fit of about a minute is, for each model."""
    rows = table((HERE / "results" / "fit_suite.md").read_text(), "## Whole fit of about 60 s")
    rows.sort(key=lambda row: number(row["ours to default"]))
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    ours = [number(row["ours to default"]) for row in rows]
    best = [ratio / number(row["ours to that"]) for ratio, row in zip(ours, rows, strict=True)]
    for shift, ratios, label, colour in (
        (0.2, ours, "keras_xla.compile(model, ...)", "ours"),
        (-0.2, best, "the best of four settings of model.compile", "forced"),
    ):
        places = [i + shift for i in range(len(rows))]
        axes.barh(places, ratios, 0.38, label=label, color=COLOURS[colour])
    axes.axvline(1, color=COLOURS["plain"], linestyle="--", label="model.compile(...)")
    axes.set_yticks(range(len(rows)), [row["model"] for row in rows])
    axes.set_xlabel("times as fast as model.compile(...), a fit of about a minute")
    axes.legend(loc="lower right", frameon=False)
    save(figure, path)


def decoding(path: pathlib.Path) -> None:
    """Milliseconds that a step of GPT-2 takes, for several batch sizes, with the memory's limit."""
    text = (HERE / "results" / "decode.md").read_text()
    text = text[text.index("### GPT-2") :]
    rows = table(text, "### GPT-2")[::-1]
    limit = number(re.search(r"measured before every run: (\S+) ms", text)[1])
    batches = [name for name in rows[0] if name.startswith("batch")]
    names = [row["ms a step"] for row in rows]
    colours = [COLOURS["forced" if "keras_xla" not in n else "jax" if "JAX" in n else "ours"] for n in names]
    figure, several = plt.subplots(1, len(batches), figsize=(9, 4), layout="constrained", sharey=True)
    for axes, batch in zip(several, batches, strict=True):
        axes.barh(names, [number(row[batch]) for row in rows], 0.6, color=colours)
        axes.axvline(limit, color=COLOURS["plain"], linestyle="--", label="limit of the memory in float32")
        axes.set_xlabel(f"ms a step, {batch}")
    figure.legend(*several[0].get_legend_handles_labels(), loc="outside upper right", frameon=False)
    save(figure, path)


def save(figure, path: pathlib.Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, transparent=True)  # on the page's own background
    plt.close(figure)


if __name__ == "__main__":
    for suffix, style in (("", "default"), ("_dark", "dark_background")):
        with plt.style.context(style):
            training(IMAGES / f"training{suffix}.png")
            decoding(IMAGES / f"decoding{suffix}.png")
