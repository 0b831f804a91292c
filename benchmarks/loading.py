"""How long a checkpoint takes to load, beside reading its files and copying them once, and the memory at the peak.

    python benchmarks/loading.py --checkpoints DIR

Every line is a process of its own, which imports Keras and its backend and makes one tensor before the clock starts. In
a round all take turns. The files are in the system's cache, as it has room. The memory is that of other processes: in
those, a thread looks every two milliseconds. DIR holds `smollm2-135m-instruct` with its GGUF file. GPT-2 124M has
random weights, as has a model in the shape of Llama 3.2 1B, in bfloat16 and in five files.
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
from contender import ROOT
from decode import make_checkpoint
from facts import measured, told
from medians import middle

HERE = pathlib.Path(__file__).parent
RAW = HERE / "results" / "loading.jsonl"
READ = """
import glob, json, os, sys, time
import numpy as np
path, _, _ = sys.argv[1:]
files = [path] if os.path.isfile(path) else glob.glob(path + "/*.safetensors")
start = time.perf_counter()
copies = [np.fromfile(file, "uint8").copy() for file in files]
print(json.dumps(dict(seconds=time.perf_counter() - start, bytes=sum(x.nbytes for x in copies))))
"""
LOAD = """
import json, sys, threading, time
import keras
keras.ops.zeros((1,))
path, dtype, watched = sys.argv[1:]

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

def watch():
    while True:
        seen.append(anonymous())
        time.sleep(0.002)

seen = []
if watched == "watched":
    import keras_xla.generation.loading  # what is imported is no weight
    seen.append(anonymous())
    threading.Thread(target=watch, daemon=True).start()
start = time.perf_counter()
import keras_xla
layer = keras_xla.XLAGenerationLayer.from_pretrained(path, dtype=dtype)
seconds = time.perf_counter() - start
import numpy as np
size = sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in layer.model.variables)
print(json.dumps(dict(seconds=seconds, weights=size, peak=max(seen) - seen[0] if seen else None)))
"""
WAYS = {"read": (READ, "tensorflow"), "tensorflow": (LOAD, "tensorflow"), "jax": (LOAD, "jax")}


def process(way: str, path: str, dtype: str, watched: str) -> dict:
    """What a process says."""
    script, backend = WAYS[way]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", script, path, dtype, watched]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    rounds = 1 + max(line["round"] for line in lines)
    text = [
        "# Loading",
        "",
        f"`python benchmarks/loading.py`, {told(lines[0])}; {rounds} rounds in which all take turns, medians, and in "
        "brackets the lowest and the highest. Keras and its backend are imported before; importing keras_xla counts. "
        "Reading is that of the weights' files, from the system's cache, and one copy. The peak is the most memory "
        "that a process had for itself while it loaded, beyond what it had before; the files are mapped, and do not "
        "count. In brackets behind it: times the bytes of the weights.",
        "",
        "| checkpoint | files, MB | weights, MB | reading, s | backend | loading, s | times reading | peak, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(line["model"] for line in lines):
        mine = [line for line in lines if line["model"] == model]
        read = [line for line in mine if line["way"] == "read"]
        for way, name in (("tensorflow", "TensorFlow"), ("jax", "JAX")):
            load = [line for line in mine if line["way"] == way]
            ratios = [a["seconds"] / b["seconds"] for a, b in zip(load, read, strict=True)]
            peak, size = statistics.median(line["peak"] for line in load), load[0]["weights"]
            took = [middle(line["seconds"] for line in lines) for lines in (read, load)]
            cells = [model, f"{read[0]['bytes'] / 1e6:.0f}", f"{size / 1e6:.0f}", took[0], name, took[1]]
            cells += [middle(ratios, ".1f")]
            text.append(f"| {' | '.join(cells)} | {peak / 1e6:.0f} ({peak / size:.2f}x) |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the table stands beside them")
    args = parser.parse_args()
    when, lines = measured("keras", "tensorflow", "jax"), []
    with tempfile.TemporaryDirectory() as gpt2, tempfile.TemporaryDirectory() as large:
        make_checkpoint(gpt2)
        subprocess.run(
            [sys.executable, "-c", f"import llama_checkpoint; llama_checkpoint.save({large!r})"], cwd=HERE, check=True
        )
        smollm2 = args.checkpoints / "smollm2-135m-instruct"
        models = {
            "GPT-2 124M, float32": (gpt2, "float32"),
            "SmolLM2-135M, float32": (str(smollm2), "float32"),
            "SmolLM2-135M, GGUF Q4_1 to float32": (str(next(smollm2.glob("*.gguf"))), "float32"),
            "Llama 1B, bfloat16, 5 files": (large, "bfloat16"),
        }
        for number in range(args.rounds):
            for model, (path, dtype) in models.items():
                for way in WAYS:
                    line = process(way, path, dtype, "")
                    if way != "read":
                        line["peak"] = process(way, path, dtype, "watched")["peak"]
                    lines.append(dict(model=model, way=way, round=number, **line) | when)
                    raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
