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

import raw_lines
from contender import ROOT
from decode import make_checkpoint
from facts import commit, measured, told

RAW = pathlib.Path(__file__).parent / "results" / "cold_start.jsonl"
WAYS = "empty cache", "second process", "bundle"
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
again = time.perf_counter()
if how == "empty cache" and hasattr(layer, "save_compiled"):
    layer.save_compiled(bundle)
print(json.dumps(dict(load=loaded - start, first=answered - loaded, second=again - answered, tokens=tokens)))
"""


def process(root: pathlib.Path, backend: str, model: str, folder: str, how: str) -> dict:
    """Seconds to load, of the first call and of the second, and the tokens."""
    cache, bundle = (os.path.join(folder, name) for name in ("other" if how == "bundle" else "cache", "bundle"))
    env = {**os.environ, "PYTHONPATH": str(root), "KERAS_BACKEND": backend, "KERAS_XLA_CACHE": cache}
    env |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT, model, bundle, how]
    # What stands in the folder in which Python runs comes before PYTHONPATH.
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    rounds = 1 + max(line["round"] for line in lines)
    older = next((line["of"] for line in lines if line["of"] != line["commit"]), None)
    named = ["empty cache", *([older] if older else [])]
    text = [
        "# From a new process to the first answer",
        "",
        f"`python benchmarks/cold_start.py{f' --before {older}' if older else ''}`, {told(lines[0])}; {rounds} rounds "
        "in which all take turns; medians, in seconds. Keras and its backend are imported before; importing keras_xla "
        "counts as loading. All make the same tokens. In the last columns stand medians of the ratios of the rounds: "
        "the first call, of that with an empty cache"
        + (f", and of that of commit {older} with an empty cache." if older else "."),
        "",
        f"| model | backend | | load | first call | second call | {' | '.join(f'of {name}' for name in named)} |",
        f"|{'---|' * (6 + len(named))}",
    ]
    groups: dict[tuple, list[dict]] = {}
    for line in lines:
        groups.setdefault((line["model"], line["backend"], line["of"], line["how"]), []).append(line)
    for (model, backend, of, how), mine in groups.items():
        cells = [model, backend, how + (f", commit {of}" if of == older else "")]
        cells += [f"{statistics.median(line[key] for line in mine):.{digits}f}" for key, digits in COLUMNS.items()]
        for base in (of, *([older] if older else [])):
            empty = groups[model, backend, base, WAYS[0]]
            ratios = [line["first"] / first["first"] for line, first in zip(mine, empty, strict=True)]
            cells.append(f"{100 * statistics.median(ratios):.0f} %")
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


COLUMNS = {"load": 1, "first": 1, "second": 2}  # with the digits that are shown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, to run, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the table stands beside them")
    args = parser.parse_args()
    when, lines = measured("keras", "tensorflow", "jax"), []
    roots = {when["commit"]: ROOT} | ({commit(args.before): args.before.resolve()} if args.before else {})
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        models = {"GPT-2": folder, "SmolLM2-135M": str(args.checkpoints / "smollm2-135m-instruct")}
        for number in range(args.rounds):
            for model, path in models.items():
                for backend in ("tensorflow", "jax"):
                    made = []
                    for of, root in roots.items():
                        with tempfile.TemporaryDirectory() as own:
                            for how in WAYS if of == when["commit"] else WAYS[:2]:
                                line = process(root, backend, path, own, how)
                                made.append(line.pop("tokens"))
                                which = dict(model=model, backend=backend, of=of, how=how, round=number)
                                lines.append(which | line | when)
                                raw_lines.write(args.raw, lines)
                    assert all(tokens == made[0] for tokens in made), "the tokens differ"
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
