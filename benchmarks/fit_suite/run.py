"""Real Keras models trained by `fit`: plain Keras and its variants, and keras_xla, side by side.

    python benchmarks/fit_suite/run.py --raw benchmarks/results/fit_suite.jsonl --budget 9000
    python benchmarks/fit_suite/report.py benchmarks/results/fit_suite.jsonl > benchmarks/results/fit_suite.md

Every fit is a process of its own, with an empty decision memory. In a round of a model all contenders take turns, and
each round starts with another one; the number of the round is the seed of all its fits. Plain Keras runs a little of
each model first, and from its pace follow the rows and the epochs of the short and the long fit, the same for all
contenders. The whole takes hours: every round of a model is appended to the raw file when it is complete, and the same
command leaves out what is there.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import machine
import raw
from contenders import CONTENDERS, LONG

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS = re.findall(r"^        (\w+),$", (HERE / "models.py").read_text(), re.MULTILINE)  # without importing Keras
PACE_STEPS, PACE_EPOCHS = 150, 4  # of the run that tells the pace
LEAST_EPOCHS = 4  # the steady epoch is the median of the second half of them
START = 10.0  # seconds that a process is thought to take beside its fit, while none has run
# Users' flags for XLA, such as a cache of executables on disk, would change what is compared.
FLAGS = ("TF_XLA_FLAGS", "XLA_FLAGS")


def limit(aim: float) -> float:
    """Seconds after which a process is stopped: one rule for every model and every contender."""
    return 300 + 5 * aim


@dataclass(frozen=True)
class Block:
    """One round of one model."""

    model: str
    kind: str
    round: int
    aim: float
    contenders: tuple[str, ...]

    def missing(self, lines: list[raw.Line]) -> bool:
        there = {line["contender"] for line in raw.of_block(lines, self.model, self.kind, self.round)}
        return not set(self.contenders) <= there

    def in_turns(self) -> tuple[str, ...]:
        first = self.round % len(self.contenders)
        return self.contenders[first:] + self.contenders[:first]

    def seconds(self, lines: list[raw.Line]) -> float:
        """What it will take: as other rounds of the model took, or as it is aimed at."""
        guess = self.aim + START

        def of(contender):
            mine = [line["wall"] for line in lines if (line["kind"], line["contender"]) == (self.kind, contender)]
            same = [
                line["wall"]
                for line in lines
                if (line["model"], line["kind"], line["contender"]) == (self.model, self.kind, contender)
            ]
            return statistics.median(same or mine or [guess])

        return sum(map(of, self.contenders))


def run(stop_after: float, contender: str, *arguments) -> dict:
    """What a worker with these arguments measured, `{"skipped": why}` or `{"failed": why}`."""
    command = [sys.executable, str(HERE / "worker.py"), *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name not in FLAGS}
    with tempfile.TemporaryDirectory() as memory:
        backend = CONTENDERS[contender].backend
        env |= {"KERAS_XLA_CACHE": memory, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        env["PYTHONPATH"] = str(ROOT)  # the keras_xla of the commit that the line names, whatever is installed
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=stop_after)
        except subprocess.TimeoutExpired:
            return {"failed": f"stopped after {stop_after:.0f} s"}
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


class Suite:
    """Measures blocks and appends them to the raw file."""

    def __init__(self, path: pathlib.Path):
        self.path, self.lines, self._facts = path, raw.read(path), machine.facts()

    def measure(self, block: Block) -> None:
        """Run all contenders of a block, those measured in it before included: only neighbours can be compared."""
        there = [line["contender"] for line in raw.of_block(self.lines, block.model, block.kind, block.round)]
        contenders = [name for name in CONTENDERS if name in {*there, *block.contenders}]
        block = Block(block.model, block.kind, block.round, block.aim, tuple(contenders))
        pace = self._pace(block.model)
        if "failed" in pace:
            return
        rows, epochs = plan(block.aim, pace)
        self._keep(block, epochs, "--rows", rows, "--seed", block.round)

    def _pace(self, model: str) -> dict:
        """What a little of plain Keras took, measured once for a model."""
        if not any("seconds" in line for line in raw.of_block(self.lines, model, "pace", 0)):
            self._keep(Block(model, "pace", 0, 60, ("default",)), PACE_EPOCHS, "--steps", PACE_STEPS)
        return raw.of_block(self.lines, model, "pace", 0)[0]

    def _keep(self, block: Block, epochs: int, *options) -> None:
        began, limited = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), limit(block.aim)
        common = dict(model=block.model, kind=block.kind, round=block.round, aim=block.aim, limit=limited, block=began)
        common |= {**self._facts, "bandwidth": machine.bandwidth()}
        measured = []
        for contender in block.in_turns():
            print(block.model, block.kind, block.round, contender, end=": ", file=sys.stderr, flush=True)
            key, start = dict(**common, contender=contender, load=machine.load()), time.perf_counter()
            line = {**key, **run(limited, contender, block.model, contender, epochs, *options)}
            line["wall"] = time.perf_counter() - start
            said = line.get("failed") or line.get("skipped") or f"{line['seconds']:.1f} s"
            print(said, file=sys.stderr, flush=True)
            measured.append(line)
        raw.append(self.path, measured)
        self.lines = raw.read(self.path)


def blocks_of(args: argparse.Namespace) -> list[Block]:
    """All rounds in their order: short ones, then long ones, in each of them all models."""
    made = []
    for kind, aim, rounds, contenders in (
        ("short", args.short, args.rounds, args.contenders or list(CONTENDERS)),
        ("long", args.long, args.long_rounds, args.long_contenders or args.contenders or LONG),
    ):
        asked = tuple(name for name in CONTENDERS if name in contenders)
        made += [Block(model, kind, i, aim, asked) for i in range(rounds) for model in args.models]
    return made


def estimate(blocks: list[Block], lines: list[raw.Line]) -> str:
    """How long each kind of round takes over all its models, and all that is missing."""
    said = []
    for kind, number in dict.fromkeys((block.kind, block.round) for block in blocks):
        mine = [block for block in blocks if (block.kind, block.round) == (kind, number)]
        seconds = sum(block.seconds(lines) for block in mine)
        many = f"{len(mine)} models x {len(mine[0].contenders)} contenders"
        said.append(f"{kind} round {number}: {many}, about {seconds / 60:.0f} min")
    left = [block for block in blocks if block.missing(lines)]
    said.append(f"missing: {len(left)} blocks, about {sum(block.seconds(lines) for block in left) / 3600:.1f} h")
    return "\n".join(said)


def refuse_another_aim(blocks: list[Block], lines: list[raw.Line], path: pathlib.Path) -> None:
    aims = {block.kind: block.aim for block in blocks}
    for line in lines:
        if line["aim"] != aims.get(line["kind"], line["aim"]):
            sys.exit(
                f"{path} has {line['kind']} fits of about {line['aim']:g} s; asked for were {aims[line['kind']]:g} s. "
                "Name another file with --raw."
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(CONTENDERS)
    parser.add_argument("--raw", type=pathlib.Path, default=HERE.parent / "results" / "fit_suite.jsonl")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, metavar="MODEL")
    parser.add_argument("--contenders", nargs="+", choices=names, help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--long-contenders", nargs="+", choices=names, help=f"default: {', '.join(LONG)}")
    parser.add_argument("--rounds", type=int, default=3, help="of the short fits")
    parser.add_argument("--long-rounds", type=int, default=1, help="of the long fits; 0 leaves them out")
    parser.add_argument("--short", type=float, default=10, help="seconds of the short fit in plain Keras")
    parser.add_argument("--long", type=float, default=60, help="seconds of the long fit in plain Keras")
    parser.add_argument("--budget", type=float, help="seconds; no round is begun that would end later")
    parser.add_argument("--estimate", action="store_true", help="only say how long it would take")
    args = parser.parse_args()
    suite, blocks, start = Suite(args.raw), blocks_of(args), time.monotonic()
    refuse_another_aim(blocks, suite.lines, args.raw)
    print(estimate(blocks, suite.lines), file=sys.stderr, flush=True)
    if args.estimate:
        return
    for block in blocks:
        if not block.missing(suite.lines):
            continue
        if args.budget and time.monotonic() - start + block.seconds(suite.lines) > args.budget:
            print("The budget ends here; the same command goes on.", file=sys.stderr)
            break
        suite.measure(block)
    print(estimate(blocks, suite.lines).splitlines()[-1], file=sys.stderr)


if __name__ == "__main__":
    main()
