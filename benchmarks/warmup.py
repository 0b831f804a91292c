"""How long `warmup` takes for several batch sizes: one executable after the other, and side by side.

    python benchmarks/warmup.py --checkpoints DIR

Every line is a process of its own, which has loaded SmolLM2-135M before the clock starts; in a round all take turns.
DIR holds `smollm2-135m-instruct`. Beside the seconds by the clock it tells those of all cores together, and how many
other processes took meanwhile (Linux): a line with many of them says nothing of the gain.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import raw_lines
from facts import measured, told
from medians import middle

HERE = pathlib.Path(__file__).resolve().parent
RAW = HERE / "results" / "warmup.jsonl"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}
SCRIPT = """
import json, os, sys, time
import keras_xla
from keras_xla.engine import warmup

def busy():
    with open("/proc/stat") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")

model, at_once, sizes = sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
layer = keras_xla.XLAGenerationLayer.from_pretrained(model, max_new_tokens=16)
warmup.cores = lambda: at_once
everybody, start, work = busy(), time.perf_counter(), time.process_time()
count = layer.warmup(sizes, 24, verbose=0)
seconds, work = time.perf_counter() - start, time.process_time() - work
others = max(0.0, busy() - everybody - work)
print(json.dumps(dict(seconds=seconds, work=work, others=others, executables=count)))
"""


def process(backend: str, model: str, at_once: int, sizes: list[int]) -> dict:
    """What a process says."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT, model, str(at_once), *map(str, sizes)]
    # In that folder: Python would import what is in this one.
    done = subprocess.run(command, cwd=HERE.parent, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    rounds, others = 1 + max(line["round"] for line in lines), max(line["others"] for line in lines)
    text = [
        "# How long `warmup` takes",
        "",
        f"`python benchmarks/warmup.py`, {told(lines[0])}. SmolLM2-135M, batch sizes "
        f"{', '.join(map(str, lines[0]['sizes']))}; {rounds} rounds in which all take turns, medians, and in brackets "
        "the lowest and the highest. The ratios are those of a round. While a line was measured, other processes "
        f"took at most {others:.1f} s of a core.",
        "",
        "| backend | executables | at once | seconds | of all cores | times one after the other |",
        "|---|---|---|---|---|---|",
    ]
    for backend, name in BACKENDS.items():
        mine = [line for line in lines if line["backend"] == backend]
        alone = [line for line in mine if line["at_once"] == 1]
        for at_once in dict.fromkeys(line["at_once"] for line in mine):
            these = [line for line in mine if line["at_once"] == at_once]
            ratios = [line["seconds"] / one["seconds"] for line, one in zip(these, alone, strict=True)]
            cells = [name, str(these[0]["executables"]), str(at_once)]
            cells += [middle([line[key] for line in these], ".1f") for key in ("seconds", "work")]
            text.append(f"| {' | '.join(cells)} | {middle(ratios)} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8], help="of batches")
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the table stands beside them")
    args = parser.parse_args()
    model = str(args.checkpoints.resolve() / "smollm2-135m-instruct")
    when, lines = measured("keras", "tensorflow", "jax"), []
    for number in range(args.rounds):
        for backend in BACKENDS:
            for at_once in (1, len(os.sched_getaffinity(0))):
                made = process(backend, model, at_once, args.sizes)
                lines.append(dict(backend=backend, at_once=at_once, round=number, sizes=args.sizes, **made, **when))
                raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
