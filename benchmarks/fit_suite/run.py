"""Real Keras models trained by `fit`: plain Keras, plain Keras with XLA forced, and keras_xla, side by side.

    python benchmarks/fit_suite/run.py --output results.md

Every fit is a process of its own, with an empty decision memory; the modes take turns in every round, and each round
starts with another one. Plain Keras runs a little of each model first, and from its pace follow the rows and the epochs
of the short and the long fit, the same for all modes. The report is printed, and written after every fit. The whole
takes hours: with `--kept FILE` the measurements are kept, and the same command goes on after a break.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from report import report
from worker import MODELS, MODES

HERE = pathlib.Path(__file__).parent
PACE_STEPS, PACE_EPOCHS = 150, 4  # of the run that tells the pace
LEAST_EPOCHS = 4  # the steady epoch is the median of the second half of them
# Users' flags for XLA, such as a cache of executables on disk, would change what is compared.
FLAGS = ("TF_XLA_FLAGS", "XLA_FLAGS")


def run(limit: float, *arguments) -> dict:
    """What a worker with these arguments measured, or `{"failed": why}`."""
    command = [sys.executable, str(HERE / "worker.py"), *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name not in FLAGS}
    with tempfile.TemporaryDirectory() as memory:
        env |= {"KERAS_XLA_CACHE": memory, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"stopped after {limit:.0f} s"}
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing on stderr"]
        raised = [i for i, line in enumerate(said) if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return {"failed": f"exit status {done.returncode}: {' '.join(said[raised[-1] if raised else -1 :])[:400]}"}
    return json.loads(done.stdout.splitlines()[-1])


def plan(aim: float, pace: dict) -> tuple[int, int]:
    """Rows and epochs with which plain Keras takes about `aim` seconds, at least half of them in steps."""
    epoch = statistics.median(pace["epochs"][PACE_EPOCHS // 2 :])
    step = epoch / -(-pace["rows"] // pace["batch_size"])
    start = pace["seconds"] - epoch * PACE_EPOCHS
    steps_in_all = max(aim - start, aim / 2) / step
    rows, batch = pace["all_rows"], pace["batch_size"]
    steps = -(-rows // batch)
    if steps * LEAST_EPOCHS > steps_in_all:  # a cut set ends with as odd a batch as the whole one does
        steps = max(int(steps_in_all / LEAST_EPOCHS), 2)
        rows = (steps - 1) * batch + (rows % batch or batch)
    return rows, max(round(steps_in_all / steps), LEAST_EPOCHS)


class Measurements:
    """What was measured so far, in a file where one is named."""

    def __init__(self, path: pathlib.Path | None):
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.rows: list[dict] = [row for row in map(json.loads, lines) if "failed" not in row]

    def once(self, key: dict, limit: float, *arguments) -> dict:
        """The row of a key: from before, or of a run with these arguments."""
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        print(*key.values(), end=": ", file=sys.stderr, flush=True)
        row = {**key, **run(limit, *arguments)}
        print(row.get("failed") or f"{row['seconds']:.1f} s", file=sys.stderr, flush=True)
        self.rows.append(row)
        if self._path:
            with self._path.open("a") as file:
                print(json.dumps(row), file=file)
        return row


def measure_model(model: str, args: argparse.Namespace, measurements: Measurements) -> Iterator[None]:
    """Measure one model in all lengths, rounds and modes; yields after every run."""
    key = dict(model=model, kind="pace")
    pace = measurements.once(key, args.limit, model, "default", PACE_EPOCHS, "--steps", PACE_STEPS)
    yield
    if "failed" in pace:
        return
    for kind, aim, rounds in (("short", args.short, args.rounds), ("long", args.long, args.long_rounds)):
        rows, epochs = plan(aim, pace)
        for i in range(rounds):
            for mode in args.modes[i % len(args.modes) :] + args.modes[: i % len(args.modes)]:
                key = dict(model=model, kind=kind, aim=aim, round=i, mode=mode)
                measurements.once(key, args.limit, model, mode, epochs, "--rows", rows)
                yield


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--short", type=float, default=10, help="seconds of the short fit in plain Keras")
    parser.add_argument("--long", type=float, default=60, help="seconds of the long fit in plain Keras")
    parser.add_argument("--rounds", type=int, default=3, help="of the short fit")
    parser.add_argument("--long-rounds", type=int, default=1, help="of the long fit; 0 leaves it out")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which a run is stopped")
    parser.add_argument(
        "--kept", type=pathlib.Path, help="a file for the measurements; what ended well in it is not run again"
    )
    parser.add_argument("--output", type=pathlib.Path, help="a file for the report")
    args = parser.parse_args()
    command = shlex.join(["python", "benchmarks/fit_suite/run.py", *sys.argv[1:]])
    measurements = Measurements(args.kept)
    text = ""
    for model in args.models:
        for _ in measure_model(model, args, measurements):
            text = report(measurements.rows, args, command)
            if args.output:
                args.output.parent.mkdir(parents=True, exist_ok=True)
                args.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
