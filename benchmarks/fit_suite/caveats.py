"""What a reader has to know, found in the raw lines themselves."""

import statistics
from collections import Counter
from collections.abc import Callable

import losses
from raw import Line
from results import Results, spread, times, whole

# What the raw lines cannot tell of a block, by its model, its kind and when it began. A note is gone with its block.
NOTES = {
    ("cnn", "long", "2026-11-25T15:00:36+00:00"): (
        "cnn, long: this block ran three times. In the first run ours was at 0.79x of the best of four (spe32 20.2 s, "
        "ours 25.5 s). The second was disturbed and thrown away. The third is in the tables, and the raw lines have "
        "neither of the others. Ours is the plain graph there, as spe32 is: read the two as equally fast."
    ),
}
TWO_BATCHES = "6a78fad", "2026-11-25T14:35:05+00:00"  # since when `predict` on arrays computes two batches at once


def said(results: Results) -> list[str]:
    """One sentence or two for each."""
    made = [*_rounds(results), *_noise(results), *_machine(results), *_versions(results)]
    made += [*_notes(results), *_older_predicts(results), *_left_out(results), *_turned_off(results)]
    if found := losses.gaps(results):
        made.append(f"Losses of ours with a gap to plain Keras': {'; '.join(found)}. See the losses below.")
    return made


def _rounds(results: Results) -> list[str]:
    made = []
    for kind in results.kinds:
        counts = {model: results.rounds(model, kind) for model in results.models}
        if len(set(counts.values())) == 1:
            made.append(f"Rounds of the {kind} fits: {next(iter(counts.values()))} of every model.")
        else:
            listed = ", ".join(f"{model} {count}" for model, count in counts.items())
            made.append(f"Rounds of the {kind} fits are NOT equal: {listed}.")
        if min(counts.values()) < 2:
            made[-1] += " One round has no spread: a figure may be off by as much as the noise of the others."
    return made


def _noise(results: Results) -> list[str]:
    made = []
    for kind in results.kinds:
        spreads = {}
        for model in results.models:
            seconds = [whole(line) for line in results.of(model, kind, "default") if "seconds" in line]
            if len(seconds) > 1:
                spreads[model] = max(seconds) / min(seconds)
        if spreads:
            worst = max(spreads, key=spreads.get)
            made.append(
                f"Noise: default's slowest {kind} fit took {times(statistics.median(spreads.values()))} of its fastest "
                f"in the median model, {times(spreads[worst])} in the worst ({worst})."
            )
    return made


def _machine(results: Results) -> list[str]:
    cores = _all(results.lines, lambda line: f"{line['cores']} cores, {line['cpu']}")
    load, bandwidth = [line["load"] for line in results.lines], [line["bandwidth"] / 1e9 for line in results.lines]
    return [
        f"{cores}. Before a run {spread(load, '{:.1f}'.format)} processes wanted a core (the load of the last minute, "
        "with what is left of the run before it). Memory was read at "
        f"{spread(set(bandwidth), '{:.1f}'.format)} GB/s, measured before every round of a model: a wide range is a "
        "disturbed machine."
    ]


def _versions(results: Results) -> list[str]:
    commits = Counter(line["commit"] + "+ (with changes)" * line["changed"] for line in results.fits)
    made = []
    if len(commits) > 1:
        made.append("Lines of several commits: " + ", ".join(f"{name} ({n})" for name, n in commits.items()) + ".")
    elif any(line["changed"] for line in results.fits):
        made.append(f"Measured at {next(iter(commits))}, which was changed and not committed.")
    return made


def _notes(results: Results) -> list[str]:
    blocks = {(line["model"], line["kind"], line["block"]) for line in results.fits}
    return [note for block, note in NOTES.items() if block in blocks]


def _older_predicts(results: Results) -> list[str]:
    """The models whose `predict` was timed before it computed two batches at once."""
    commit, since = TWO_BATCHES
    timed = {line["model"]: line["block"] for line in results.fits if line["kind"] == results.kinds[-1]}
    older, newer = ([model for model, block in timed.items() if (block < since) == old] for old in (True, False))
    if not older:
        return []
    which = f"all models but {', '.join(newer)}" if 0 < len(newer) < len(older) else ", ".join(older)
    said = f"Later `predict` of {which if newer else 'all models'}: measured before commit {commit}, since which "
    return [said + "keras_xla computes two batches at once in a `predict` on arrays."]


def _left_out(results: Results) -> list[str]:
    limits = {line["kind"]: line["limit"] for line in results.fits}
    rule = ", ".join(f"{seconds:.0f} s in {kind} fits" for kind, seconds in limits.items())
    made = [f"Every process had the same limit for every model: {rule}."]
    for how in ("skipped", "failed"):
        found = Counter(
            (line["model"], line["contender"], line["kind"], line[how]) for line in results.lines if how in line
        )
        for (model, contender, kind, why), count in found.items():
            made.append(f"{how.capitalize()}: {model}, {contender}, {kind}, {count}x: {why}.")
    return made


def _turned_off(results: Results) -> list[str]:
    """Where Keras turned XLA off, with a warning, although it was forced."""
    off = [line["model"] for line in results.fits if "forced" in line["contender"] and line.get("jit") is False]
    names = ", ".join(dict.fromkeys(off))
    return [f"Keras turned XLA off for {names}, with a warning: there forced is default."] if names else []


def _all(lines: list[Line], of: Callable[[Line], str]) -> str:
    return "; ".join(dict.fromkeys(map(of, lines)))
