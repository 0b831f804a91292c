"""SmolLM2-135M, prompts of several lengths: speed beside that of a plain matrix product, and memory.

    python benchmarks/prefill.py --before OLDER_CHECKOUT

Batch 1, float32. Every contender runs in a process of its own; rounds alternate between them. A call makes one token.
Needs Linux: peak memory is read from /proc.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import time

import numpy as np
import raw_lines
from contender import ROOT, Contender
from decode import PAUSE, smollm2_file
from facts import commit, measured, told
from medians import middle

RAW = ROOT / "benchmarks" / "results" / "prefill.jsonl"
LENGTHS = (64, 256, 512, 1024, 2048, 4096)
BLOCKS, WIDTH, HEADS, GATE = 30, 576, 9, 1536  # of SmolLM2-135M
WEIGHTS = BLOCKS * (2 * WIDTH**2 + 2 * WIDTH * 192 + 3 * WIDTH * GATE)  # that each token of a prompt meets
CACHE_BYTES = BLOCKS * 2 * 192 * 4  # a token
LABELS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def operations(length):
    """Additions and multiplications that a prompt needs: a token sees those before it."""
    return 2 * WEIGHTS * length + 2 * BLOCKS * WIDTH * length**2


def product_speed(rows, rng):
    """Operations a second of numpy's products of so many rows with matrices as large as the model's, one a block."""
    x, matrices = rng.random((rows, WIDTH), np.float32), rng.random((BLOCKS, WIDTH, GATE), np.float32)
    took = []
    for _ in range(3):
        start = time.perf_counter()
        for matrix in matrices:
            x @ matrix
        took.append(time.perf_counter() - start)
    return 2 * x.size * GATE * BLOCKS / min(took)


def memory(what):
    """`VmRSS` or `VmHWM`, the peak, of this process in megabytes."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) * 1024 / 1e6


def worker(model):
    import keras_xla

    root = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    assert pathlib.Path(keras_xla.__file__).is_relative_to(root), "another keras_xla was imported"
    layer, rng = keras_xla.XLAGenerationLayer.from_pretrained(model, eos_token_id=None), np.random.default_rng(0)
    print("ready", flush=True)
    for line in sys.stdin:
        ids = rng.integers(100, 40_000, (1, json.loads(line)["length"]))
        ctypes.CDLL(None).malloc_trim(0)  # what earlier calls have left would hide what this one takes
        before = memory("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        start = time.perf_counter()
        layer.generate(ids, max_new_tokens=1)
        seconds = time.perf_counter() - start
        keys = layer._generator.executables.keys
        # An older version runs the prompt whole, padded.
        sizes = (getattr(key, "chunk", getattr(key, "prompt", None)) for key in reversed(keys))
        at_once = next(size for size in sizes if size)
        print(json.dumps(dict(seconds=seconds, grew=memory("VmHWM") - before, at_once=at_once)), flush=True)


def measure(args):
    """A line for each contender, length and round."""
    model, lines, rng = smollm2_file(), [], np.random.default_rng(0)
    roots = {"now": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    contenders = {
        (backend, which): Contender(which, sys.executable, "prefill.py", "--worker", model, root=root, backend=backend)
        for backend in args.backends
        for which, root in roots.items()
    }
    # The first call of a length compiles; what runs at once is that of the newest executable.
    at_once = {
        (length, *who): c.ask(length=length)["at_once"] for length in args.lengths for who, c in contenders.items()
    }
    for turn in range(args.rounds):
        for length in args.lengths:
            for who, c in list(contenders.items())[:: -1 if turn % 2 else 1]:
                time.sleep(PAUSE)
                rows = at_once[length, *who]
                line = dict(backend=who[0], which=who[1], length=length, round=turn, **c.ask(length=length))
                time.sleep(PAUSE)
                lines.append(line | dict(at_once=rows, product=product_speed(rows, rng)))
    for c in contenders.values():
        c.close()
    when = measured("keras", *args.backends) | (dict(before=commit(args.before)) if args.before else {})
    return [{**line, **when} for line in lines]


def report(lines):
    """The page of raw lines."""
    first, rounds, of = lines[0], 1 + max(line["round"] for line in lines), {}
    for line in lines:
        of.setdefault((line["backend"], line["which"], line["length"]), []).append(line)
    text = [
        "# Long prompts, SmolLM2-135M",
        "",
        f"`python benchmarks/prefill.py{' --before FOLDER' if 'before' in first else ''}`, {told(first)}. Batch 1, "
        f"float32; {rounds} rounds in which all take turns; medians, in brackets the lowest and the highest. A call "
        "reads the prompt and makes one token: both are in the seconds.",
        "",
        "Operations are those of the matrices, and of attention to the tokens before; what is computed for masked ones "
        "is not counted. Beside them: numpy's speed, in the same round, in products of as many rows as run at once "
        f"with {BLOCKS} matrices of {WIDTH} x {GATE}, the largest in each block.",
        "",
        "Memory is what a later call of the same length takes at its peak beyond what the process had. keras_xla keeps "
        f"its cache from call to call, {CACHE_BYTES / 1e3:.0f} kB a token of its size, so that it is not in there; an "
        "older version makes it in each call. Beside it: what the scores of all tokens with all would take in a single "
        "block.",
        "",
        "| | tokens | at once | seconds | tokens a second | GFLOP/s | of the product's | memory, MB | scores, MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (backend, which, length), mine in of.items():
        speeds = [operations(length) / line["seconds"] for line in mine]
        of_product = middle([s / line["product"] for s, line in zip(speeds, mine, strict=True)], ".2f")
        took = statistics.median(line["seconds"] for line in mine)
        cells = [LABELS[backend] + (f", at {first['before']}" if which == "before" else "")]
        cells += [length, mine[0]["at_once"], middle([line["seconds"] for line in mine], ".2f"), f"{length / took:.0f}"]
        cells += [f"{statistics.median(speeds) / 1e9:.0f}", of_product, middle([line["grew"] for line in mine], ".0f")]
        text.append(f"| {' | '.join(map(str, cells))} | {HEADS * length**2 * 4 / 1e6:.0f} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, to run, too")
    parser.add_argument("--backends", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the page stands beside them")
    args = parser.parse_args()
    args.lengths = sorted(args.lengths)
    lines = measure(args)
    raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    worker(sys.argv[2]) if sys.argv[1:2] == ["--worker"] else main()
