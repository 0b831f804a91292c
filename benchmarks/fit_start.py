"""How long the first steps of `fit` take in a new process: with nothing kept from before, and the second time.

    cd benchmarks/results; python ../fit_start.py > fit_start.md

Every line is a process of its own, which trains a model of the fit suite for two epochs of eight batches, with
`jit_compile=True`, on TensorFlow. The clock starts before the model is compiled. In a round the first process keeps
nothing, the second finds an empty cache, the third finds what the second has kept. The losses have to be the same.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import raw_lines
from facts import cpu, facts

HERE = pathlib.Path(__file__).resolve().parent
WAYS = ("no cache", "empty cache", "second process")
MODELS = ("mlp", "resnet", "gru", "text_transformer", "mini_gpt")
BATCHES = 8
SCRIPT = """
import json, os, sys, time
import keras
import tensorflow as tf
import keras_xla
if sys.argv[2] != "no cache":
    keras_xla.compile_cache()
from models import MODELS
case = MODELS[sys.argv[1]]()
model, rows = case.make(0), int(sys.argv[3]) * case.batch_size
data, arguments = case.fit_arguments(rows), case.compile_arguments()
start = time.perf_counter()
keras_xla.compile(model, **arguments, jit_compile=True)
losses = model.fit(**data, epochs=1, verbose=0).history["loss"]
first = time.perf_counter() - start
losses += model.fit(**data, epochs=1, verbose=0).history["loss"]
second = time.perf_counter() - start - first
print(json.dumps(dict(first=first, second=second, losses=losses)))
"""


def process(model: str, way: str, cache: str) -> dict:
    """What one process measures."""
    env = {**os.environ, "KERAS_BACKEND": "tensorflow", "KERAS_XLA_CACHE": cache, "TF_CPP_MIN_LOG_LEVEL": "3"}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE / "fit_suite")])
    command = [sys.executable, "-c", SCRIPT, model, way, str(BATCHES)]
    done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(args: argparse.Namespace) -> None:
    """Append a line a process to the raw file; a round of a model that is there is left out."""
    known = facts() | dict(cpu=cpu(), cores=os.cpu_count())
    there = {(line["model"], line["round"]) for line in raw_lines.of_the_same(args.raw, known)}
    for turn in range(args.rounds):
        for model in args.models:
            if (model, turn) in there:
                continue
            with tempfile.TemporaryDirectory() as cache:
                lines = [dict(model=model, round=turn, way=way, **process(model, way, cache), **known) for way in WAYS]
            raw_lines.append(args.raw, lines)
            print(model, turn, [round(line["first"], 1) for line in lines], file=sys.stderr, flush=True)


def report(lines: list[dict]) -> str:
    """The page."""
    models = dict.fromkeys(line["model"] for line in lines)
    rounds = min(sum(line["model"] == model for line in lines) for model in models) // len(WAYS)
    lines = [line for line in lines if line["round"] < rounds]
    first = lines[0]
    differ = sum(line["losses"] != plain["losses"] for line, plain in zip(lines, _firsts(lines), strict=True))
    made = [
        "# The first steps of `fit` in a new process\n",
        f"`python benchmarks/fit_start.py`, {first['date']}, commit {first['commit']}, keras {first['keras']} on "
        f"{first['backend']}, {first['cpu']}, {first['cores']} cores. Models of the fit suite, `jit_compile=True`, an "
        f"epoch of {BATCHES} batches; rounds: {rounds}. Seconds from `compile` to the end of the first epoch, medians; "
        "in brackets: times that of a process that keeps nothing, the median over the rounds. Processes whose losses "
        f"are not those of the first one: {differ} of {len(lines)}.\n",
        f"| model | {' | '.join(WAYS)} | second epoch, without and with a cache |",
        f"|---|{'---|' * (len(WAYS) + 1)}",
    ]
    for model in models:
        of = {(line["way"], line["round"]): line for line in lines if line["model"] == model}
        cells = []
        for way in WAYS:
            each = [of[way, turn]["first"] for turn in range(rounds)]
            ratio = statistics.median(x / of[WAYS[0], turn]["first"] for turn, x in enumerate(each))
            cells.append(f"{statistics.median(each):.1f}" + (f" ({ratio:.2f}x)" if way != WAYS[0] else ""))
        for way in (WAYS[0], WAYS[-1]):
            later = statistics.median(of[way, turn]["second"] for turn in range(rounds))
            cells.append(f"{later:.2f}")
        made.append(f"| {model} | {' | '.join(cells[:-2])} | {', '.join(cells[-2:])} |")
    return "\n".join(made) + "\n"


def _firsts(lines: list[dict]) -> list[dict]:
    """For each line the first process of its round."""
    of = {(line["model"], line["round"]): line for line in lines if line["way"] == WAYS[0]}
    return [of[line["model"], line["round"]] for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--raw", type=pathlib.Path, default="fit_start.jsonl")
    parser.add_argument("--report", action="store_true", help="measure nothing: make the page of the raw lines")
    args = parser.parse_args()
    if not args.report:
        measure(args)
    print(report(raw_lines.read(args.raw)), end="")


if __name__ == "__main__":
    main()
