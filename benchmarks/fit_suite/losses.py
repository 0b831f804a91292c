"""Do the contenders reach the same losses? The number of a round is the seed of its fits.

The last epoch's loss alone says little where a model has learned its data by heart: then it jumps from epoch to epoch.
So the compared loss is the mean over the second half of the epochs.
"""

import statistics

from contenders import CONTENDERS
from raw import Line
from results import Results

SAME = 1e-3  # relative: to rounding
GAP = 0.05  # relative, and to the same side with every seed
SEEDS = 3  # fewer do not tell a gap from chance
OTHERS = ("nudged", "forced", "spe32", "spe32_forced", "ours_graph", "ours_steps", "ours", "ours_jax")
ROUNDED = ("nudged", "forced")  # plain Keras with other roundings
NOTE = (
    "Losses: the mean over the second half of the epochs, by seed; what follows is relative to default with the same "
    "seed (of ours_jax: to jax, which draws other numbers from a seed). `equal`: to the last bit in every epoch. "
    f"`rounding`: within {SAME:g} with every seed. `scatters`: to both sides, or by at most {GAP:.0%} in the median, "
    "or by no more than plain Keras does with other roundings (nudged, forced) or other seeds. Else it is a **gap**. "
    f"With fewer than {SEEDS} seeds a gap is one to look at."
)


def settled(line: Line) -> float:
    """The mean loss over the second half of the epochs."""
    return statistics.fmean(line["losses"][len(line["losses"]) // 2 :])


def verdict(results: Results, model: str, kind: str, contender: str) -> str:
    """How the losses of a contender compare to those of plain Keras."""
    beside = "jax" if CONTENDERS[contender].backend == "jax" else "default"  # a seed gives each backend other numbers
    plain, mine = _by_seed(results, model, kind, beside), _by_seed(results, model, kind, contender)
    seeds = sorted(plain.keys() & mine.keys())
    if not seeds:
        return "-"
    if all(plain[seed]["losses"] == mine[seed]["losses"] for seed in seeds):
        return "equal"
    gaps = [_gap(plain[seed], mine[seed]) for seed in seeds]
    text = f"{min(gaps):+.1%}" if len(gaps) == 1 else f"{min(gaps):+.1%} ... {max(gaps):+.1%}"
    if max(map(abs, gaps)) <= SAME:
        return f"rounding, {text}"
    one_side = min(gaps) > 0 or max(gaps) < 0
    usual = _usual(results, model, kind, plain)
    if one_side and abs(statistics.median(gaps)) > max(GAP, usual):
        return f"**gap**, {text}"
    return f"scatters, {text}"


def table(results: Results, kind: str) -> tuple[list[str], list[list[str]]]:
    """Head and body: plain Keras' losses, and the verdicts on the others."""
    others = [name for name in OTHERS if any(_by_seed(results, model, kind, name) for model in results.models)]
    body = []
    for model in results.models:
        plain = _by_seed(results, model, kind, "default")
        shown = ", ".join(f"{settled(plain[seed]):.4g}" for seed in sorted(plain)) or "-"
        body.append([model, shown, *(verdict(results, model, kind, name) for name in others)])
    return ["model", "default", *others], body


def gaps(results: Results) -> list[str]:
    """Where ours ends elsewhere than plain Keras."""
    found = []
    for kind in results.kinds:
        for model in results.models:
            said = verdict(results, model, kind, "ours")
            if said.startswith("**gap**"):
                found.append(f"{model}, {kind} ({said.split(', ', 1)[1]})")
    return found


def _by_seed(results: Results, model: str, kind: str, contender: str) -> dict[int, Line]:
    return {line["round"]: line for line in results.of(model, kind, contender) if "losses" in line}


def _gap(plain: Line, mine: Line) -> float:
    return settled(mine) / settled(plain) - 1 if settled(plain) else 0.0


def _usual(results: Results, model: str, kind: str, plain: dict[int, Line]) -> float:
    """How far apart plain Keras is with other seeds, and with other roundings, relatively."""
    values = [settled(line) for line in plain.values()]
    others = [_by_seed(results, model, kind, name) for name in ROUNDED]
    own = [abs(_gap(plain[seed], other[seed])) for other in others for seed in plain.keys() & other.keys()]
    return max([max(values) / min(values) - 1 if min(values) > 0 else 0.0, *own])
