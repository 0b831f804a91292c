"""`python -m tests.keras_suite`: fails on every test of Keras' own that plain Keras passes and keras_xla does not.

Each mode of keras_xla is compared with plain Keras; a test that fails in "true" has also to pass with plain Keras'
jit_compile=True to count, because what XLA cannot compile is not ours. The files of tests that differ are run once more
on both sides: a test that then passes, or fails plainly, is shown as unstable.
"""

import argparse
import itertools
import pathlib
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.keras_suite.expected import Expected, expected
from tests.keras_suite.runs import GROUPS, Results, Run, run

BACKENDS = ("tensorflow", "jax")
OURS = ("auto", "forced", "true")
FEWEST = {
    "fit": 0.5,
    "evaluate": 0.5,
    "predict": 0.5,
}  # part of the calls that have to go through XLA where it is forced


def main() -> int:
    """Run what the command line says; 1 if there is a difference that is not expected."""
    options = _options()
    modes = ["plain", "plain-true", *options.modes]
    jobs = [Run(*names) for names in itertools.product(options.backends, modes, options.groups)]
    jobs = [
        job for job in jobs if job.mode != "plain-true" or any(_compiles_all(job.backend, m) for m in options.modes)
    ]
    folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="keras_suite_"))
    results = {(backend, mode): Results() for backend in options.backends for mode in modes}

    def timed(job: Run) -> None:
        start = time.perf_counter()
        done = run(job, folder)
        results[job.backend, job.mode].add(done)
        print(f"  {job}: {_outcomes(done)} in {time.perf_counter() - start:.0f} s", flush=True)

    print(f"Keras' own tests; reports in {folder}", flush=True)
    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(timed, jobs))

    known, needed, bad = expected(), set(), 0
    for backend, mode in itertools.product(options.backends, options.modes):
        bad += _compared(backend, mode, results, known, needed, folder)
    whole = (
        set(options.groups) == set(GROUPS)
        and set(options.modes) == set(OURS)
        and set(options.backends) == set(BACKENDS)
    )
    for entry in [entry for entry in known if whole and entry not in needed]:
        print(f"expected.toml: nothing differs any more at {entry.tests!r} with {entry.error!r}; take the entry out")
        bad += 1
    print("no difference" if not bad else f"{bad} differences")
    return min(bad, 1)


def _compared(backend: str, mode: str, results: dict, known: list[Expected], needed: set, folder) -> int:
    """Print how one mode compares with plain Keras; the number of differences that are not expected."""
    ours, plain = results[backend, mode], results[backend, "plain"].passed()
    comparable = plain & results[backend, "plain-true"].passed() if _compiles_all(backend, mode) else plain
    listed, lost = Counter(), {}
    for test in sorted(comparable - ours.passed()):
        text = ours.text(test)
        entry = next((entry for entry in known if entry.covers(backend, mode, test, text)), None)
        if entry:
            needed.add(entry)
            listed[entry.reason] += 1
        else:
            lost[test] = ours.errors.get(test, "it was not run")
    again = _again(backend, mode, list(lost), folder) if lost else set()
    for test, error in lost.items():
        print(f"{'DIFFERENT' if test in again else 'unstable'} {backend} {mode} {test}\n    {error[:300]}")
    counts, bad = ours.counts, len(again)
    calls = ", ".join(f"{counts[name]} {name} ({counts[f'{name}_xla']} through XLA)" for name in FEWEST)
    print(
        f"{backend} {mode}: {len(plain)} pass plainly, {len(plain & ours.passed())} of them with ours; {bad} differ, "
        f"{sum(listed.values())} differ as listed, {len(lost) - bad} are unstable, "
        f"{len(plain - comparable - ours.passed())} fail with plain Keras' jit_compile=True, too\n"
        f"    run by ours: {counts['models_ours']} of {counts['models']} compiled models, {calls}; "
        f"{counts['compilations']} compilations"
    )
    for reason, number in listed.items():
        print(f"    as listed, {number}: {reason}")
    if mode == "forced":
        for name, part in FEWEST.items():
            if counts[f"{name}_xla"] < part * counts[name]:
                print(f"VACUOUS {backend}: of {counts[name]} calls of {name}, {counts[f'{name}_xla']} went through XLA")
                bad += 1
    return bad


def _compiles_all(backend: str, mode: str) -> bool:
    """Whether everything goes through XLA, also what a test says must not: on JAX, "auto" is XLA without a choice."""
    return mode == "true" or (backend == "jax" and mode == "forced")


def _again(backend: str, mode: str, tests: list[str], folder) -> set[str]:
    """Those of the tests that differ a second time, after the same other tests of their files."""
    files = tuple(sorted({test.partition("::")[0] for test in tests}))
    sides = ["plain", "plain-true", mode] if _compiles_all(backend, mode) else ["plain", mode]
    with ThreadPoolExecutor(2) as pool:
        *plain, ours = pool.map(lambda side: run(Run(backend, side, f"again-{mode}", files), folder), sides)
    return {test for test in tests if all(test in side.passed() for side in plain) and test not in ours.passed()}


def _outcomes(results: Results) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in Counter(results.outcomes.values()).most_common())


def _options() -> argparse.Namespace:
    def names(known):
        def parse(text: str) -> list[str]:
            chosen = text.split(",")
            for name in chosen:
                if name not in known:
                    raise argparse.ArgumentTypeError(f"received {name!r}; there are {', '.join(known)}")
            return chosen

        return parse

    parser = argparse.ArgumentParser(prog="python -m tests.keras_suite", description=__doc__.splitlines()[0])
    parser.add_argument("--backends", type=names(BACKENDS), default=list(BACKENDS), help="of tensorflow,jax")
    parser.add_argument("--modes", type=names(OURS), default=list(OURS), help="of auto,forced,true")
    parser.add_argument("--groups", type=names(GROUPS), default=list(GROUPS), help=f"of {','.join(GROUPS)}")
    parser.add_argument("--processes", type=int, default=2, help="at a time (2)")
    parser.add_argument("--keep", metavar="FOLDER", help="for the reports and outputs; a temporary one otherwise")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
