"""How long a process takes to its first answer: with nothing kept from before, and the second time.

    python benchmarks/cold_start.py --checkpoints DIR [--before OLDER_CHECKOUT]

Every line is a process of its own, which imports Keras and its backend before the clock starts, then loads a model and
makes 20 tokens. In a round the first process finds an empty cache, the second what the first kept, the third an empty
cache and what the first has saved by `save_compiled`; rounds alternate between backends and checkouts. DIR holds
`smollm2-135m-instruct`; GPT-2 124M has random weights.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from decode import make_checkpoint
from facts import commit

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = """
import importlib, json, sys, time
import keras
importlib.import_module(keras.backend.backend())
import numpy as np
start = time.perf_counter()
import keras_xla
if hasattr(keras_xla, "compile_cache"):
    keras_xla.compile_cache()
_, model, bundle, how = sys.argv
more = {"compiled": bundle} if how == "bundle" else {}
layer = keras_xla.XLAGenerationLayer.from_pretrained(model, eos_token_id=None, **more)
loaded = time.perf_counter()
tokens = layer.generate([np.arange(10, 30)], max_new_tokens=20)["sequences"].tolist()
answered = time.perf_counter()
layer.generate([np.arange(10, 30)], max_new_tokens=20)
seconds = [loaded - start, answered - loaded, time.perf_counter() - answered]
if how == "empty cache" and hasattr(layer, "save_compiled"):
    layer.save_compiled(bundle)
print(json.dumps([*seconds, tokens]))
"""


def process(root: pathlib.Path, backend: str, model: str, folder: str, how: str) -> tuple[list[float], list]:
    """Seconds to load, of the first call and of the second, and the tokens."""
    cache, bundle = (os.path.join(folder, name) for name in ("other" if how == "bundle" else "cache", "bundle"))
    env = {**os.environ, "PYTHONPATH": str(root), "KERAS_BACKEND": backend, "KERAS_XLA_CACHE": cache}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT, model, bundle, how]
    # What stands in the folder in which Python runs comes before PYTHONPATH.
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True)
    *seconds, tokens = json.loads(done.stdout.splitlines()[-1])
    return seconds, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, to run, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results" / "cold_start.md")
    args = parser.parse_args()
    roots = {"": HERE.parent} | ({f", {commit(args.before)}": args.before.resolve()} if args.before else {})
    times: dict[tuple[str, str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        models = {"GPT-2": folder, "SmolLM2-135M": str(args.checkpoints / "smollm2-135m-instruct")}
        for _ in range(args.rounds):
            for model, path in models.items():
                for backend in ("tensorflow", "jax"):
                    made = []
                    for suffix, root in roots.items():
                        with tempfile.TemporaryDirectory() as own:
                            for which in ("empty cache", "second process", *(["bundle"] if not suffix else [])):
                                seconds, tokens = process(root, backend, path, own, which)
                                times.setdefault((model, backend + suffix, which), []).append(seconds)
                                made.append(tokens)
                    assert all(tokens == made[0] for tokens in made), "the tokens differ"
    lines = [
        "# From a new process to the first answer",
        "",
        f"`python benchmarks/cold_start.py`, {time.strftime('%Y-%m-%d')}, commit {commit(HERE)}: medians of "
        f"{args.rounds} rounds, seconds; {os.cpu_count()} cores. Keras and its backend are imported before.",
        "",
        "| model | backend | | load | first call | second call | first call, of that with an empty cache |",
        "|---|---|---|---|---|---|---|",
    ]
    for (model, backend, which), rounds in times.items():
        load, first, second = (statistics.median(column) for column in zip(*rounds, strict=True))
        empty = times[model, backend, "empty cache"]
        ratio = statistics.median(a[1] / b[1] for a, b in zip(rounds, empty, strict=True))
        lines.append(
            f"| {model} | {backend} | {which} | {load:.1f} | {first:.1f} | {second:.2f} | {100 * ratio:.0f} % |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    args.out.write_text(text)


if __name__ == "__main__":
    main()
