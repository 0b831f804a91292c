"""Where the time of a decoding step goes: the products with weights, those of attention, and all else.

    python benchmarks/step_profile.py --checkpoints DIR

On the JAX backend, whose profiler times each operation of an executable. Each line is a process of its own. It loads
the model, makes 64 tokens twice, and then once under the profiler. What an operation belongs to is read from the
optimized HLO. DIR holds `smollm2-135m-instruct`; GPT-2 124M has random weights.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import raw_lines
from bandwidth import read_bandwidth
from contender import ROOT
from decode import MODELS, NEW, PROMPT, make_checkpoint
from facts import measured, told
from workers import IDS

RAW = pathlib.Path(__file__).parent / "results" / "step_profile.jsonl"
USUAL, FITTING = 128, PROMPT + NEW  # slots of a cache
CASES = [("gpt2", None, 1, USUAL), ("gpt2", None, 32, USUAL), ("gpt2", "int8", 1, USUAL), ("gpt2", "int8", 32, USUAL)]
CASES += [("gpt2", "int8", 32, FITTING), ("smollm2", None, 1, USUAL), ("smollm2", "int8", 1, USUAL)]
CASES += [("smollm2", "int8", 8, USUAL)]
_OP = re.compile(r"^\s*(?:ROOT )?%([\w.-]+) = \w+\[([\d,]*)\]\S* (dot|fusion)\((.*)", re.M)
_NAME = re.compile(r'op_name="([^"]*)"')


def parts_of(hlo: str, vocabulary: int) -> dict[str, str]:
    """Which part of a step each product is, by its name: with weights of the blocks or of the head, or of attention."""
    parts = {}
    for name, shape, kind, rest in _OP.findall(hlo):
        told = _NAME.search(rest)
        if kind == "dot":  # some have lost their `op_name`
            of_rows = "lhs_batch_dims={0" in rest
            parts[name] = "attention" if of_rows else "head" if shape.endswith(f",{vocabulary}") else "blocks"
        elif "__ynn_fusion" in rest and told and told[1].endswith("dot_general"):
            in_block = re.search(r"/(qkv|out|up|down)/dot_general$", told[1])
            parts[name] = "blocks" if in_block else "attention" if "/attention/" in told[1] else "head"
    return parts


def worker(folder: str, quantization: str, batch: int, slots: int) -> None:
    """Print what a step takes, and what its parts do."""
    import jax

    import keras_xla

    options = dict(quantization=quantization or None, cache_buckets=[slots])
    layer = keras_xla.XLAGenerationLayer.from_pretrained(folder, eos_token_id=None, **options)

    def run(new):
        start = time.perf_counter()
        layer.generate(IDS[:batch, :PROMPT], max_new_tokens=new)
        return time.perf_counter() - start

    for _ in range(2):
        run(NEW), run(2)
    bandwidth = read_bandwidth()
    step = statistics.median((run(NEW) - run(2)) / (NEW - 2) for _ in range(5))
    with tempfile.TemporaryDirectory() as trace:
        with jax.profiler.trace(trace):
            run(NEW)
        (path,) = pathlib.Path(trace).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(path))
    events = collections.defaultdict(list)  # by program: operations and nanoseconds
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats and not event.name.startswith(("end: ", "while", "cond", "call")):
                    events[stats["program_id"]].append((stats["hlo_op"], event.duration_ns))
    most = max(events, key=lambda program: sum(ns for _, ns in events[program]))
    (hlo,) = pathlib.Path(os.environ["DUMP"]).glob(f"module_{most:04d}.*.cpu_after_optimizations.txt")
    parts = parts_of(hlo.read_text(), layer.model.vocab_size)
    ms, calls = collections.Counter(), collections.Counter()
    for op, ns in events[most]:
        part = parts.get(op, "else")
        ms[part] += ns / 1e6 / NEW
        calls[part] += 1 / NEW
    print(json.dumps(dict(step=step * 1e3, bandwidth=bandwidth, ms=ms, calls=calls)))


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    rounds = 1 + max(line["round"] for line in lines)
    timed = "one round" if rounds == 1 else f"{rounds} rounds, medians"
    text = [
        "# Where a step's time goes",
        "",
        f"`python benchmarks/step_profile.py`, {told(lines[0])}; JAX backend, {timed}. JAX' profiler "
        "times each operation. Blocks: the products with the weights of the blocks. Head: that with the vocabulary. "
        "Attention: those with keys and values. In brackets: at what share of the bandwidth, measured in the same "
        "process, a product reads its weights, and (for 8 rows or more) billions of operations a second. int8 counts "
        "twice as many of these, as a row of activations has two digits. Slots: of the cache, of which 8 to 72 are in "
        "use. Kernels: operations a step that are no products.",
        "",
        "| model | weights | batch | slots | a step, ms | blocks, ms | head, ms | attention, ms | else, ms (kernels) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple, list[dict]] = {}
    for line in lines:
        groups.setdefault((line["model"], line["quantization"], line["batch"], line["slots"]), []).append(line)
    for (model, quantization, batch, slots), mine in groups.items():

        def ms(part, mine=mine):
            return statistics.median(line["ms"].get(part, 0.0) for line in mine)

        cells = [MODELS[model][0], quantization or "float32", str(batch), str(slots)]
        cells.append(f"{statistics.median(line['step'] for line in mine):.1f}")
        for part, numbers in zip(("blocks", "head"), WEIGHTS[model], strict=True):
            read = numbers * (1 if quantization else 4)
            share = statistics.median(read / (line["ms"][part] / 1e3) / line["bandwidth"] for line in mine)
            speed = 2 * numbers * batch * (2 if quantization else 1) / ms(part) / 1e6
            said = f"{share:.2f}" + (f"; {speed:.0f} G/s" if batch >= 8 else "")
            cells.append(f"{ms(part):.1f} ({said})")
        kernels = statistics.median(line["calls"].get("else", 0.0) for line in mine)
        cells += [f"{ms('attention'):.1f}", f"{ms('else'):.1f} ({kernels:.0f})"]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


# Weights of the blocks and of the head.
WEIGHTS = {
    "gpt2": (12 * 12 * 768**2, 50257 * 768),
    "smollm2": (30 * (2 * 576**2 + 2 * 576 * 192 + 3 * 576 * 1536), 49152 * 576),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the table stands beside them")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        folder, quantization, batch, slots = args.worker
        worker(folder, quantization, int(batch), int(slots))
        return
    when, lines = measured("keras", "jax"), []
    with tempfile.TemporaryDirectory() as gpt2:
        make_checkpoint(gpt2)
        folders = {"gpt2": gpt2, "smollm2": str(args.checkpoints / "smollm2-135m-instruct")}
        for number in range(args.rounds):
            for model, quantization, batch, slots in CASES:
                with tempfile.TemporaryDirectory() as dump:
                    env = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax", "DUMP": dump}
                    env |= {"XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_hlo_as_text", "TF_CPP_MIN_LOG_LEVEL": "3"}
                    command = [sys.executable, __file__, "--worker", folders[model], quantization or "", str(batch)]
                    command.append(str(slots))
                    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
                which = dict(model=model, quantization=quantization, batch=batch, slots=slots, round=number)
                lines.append(which | json.loads(done.stdout.splitlines()[-1]) | when)
                raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
