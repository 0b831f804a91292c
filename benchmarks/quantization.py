"""Weights in int8 and int4 beside float32: how fast a step is, and what it costs in quality.

    python benchmarks/quantization.py --checkpoints DIR
    python benchmarks/quantization.py --checkpoints DIR --parts quality

Speed: greedy decode of GPT-2 124M (random weights), every contender in a process of its own, rounds alternating, as in
`decode.py`. Quality: perplexity of SmolLM2-135M-Instruct on WikiText-2, and what whisper-tiny.en hears; DIR holds
`smollm2-135m-instruct`, `whisper-tiny.en`, `wikitext-2/test.txt` and `jfk.wav`. Each part replaces its lines in the raw
file, and the table is made of all of them.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import decode
import numpy as np
from decode import Contender, commit, make_checkpoint

HERE = pathlib.Path(__file__).parent
RAW = HERE / "results" / "quantization.jsonl"
WINDOW = 512  # tokens that perplexity sees at once
KINDS = ("float32", "int8", "int4")
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def speed(rounds: int, batches: list[int]) -> list[dict]:
    """A line for each contender, batch size and round."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        contenders = []
        for backend in BACKENDS:
            for kind in KINDS:
                name = "ours" if kind == "float32" else f"ours-{kind}"
                made = Contender(f"{kind}, {backend}", sys.executable, name, folder, KERAS_BACKEND=backend)
                contenders.append((backend, kind, made))
        for _, _, c in contenders:
            for batch in batches:
                c.run(batch, decode.NEW)
                c.run(batch, decode.SHORT)
        for number in range(rounds):
            for batch in batches:
                for backend, kind, c in contenders:
                    c.step(batch)
                    line = dict(part="speed", backend=backend, kind=kind, batch=batch, round=number)
                    lines.append({**line, "ms": c.ms[batch][-1], "limit": c.limits[batch][-1]})
        for _, _, c in contenders:
            c.process.stdin.close()
    return lines


def quality(checkpoints: pathlib.Path, windows: int) -> list[dict]:
    """A line for each kind of weights."""
    lines = []
    for kind in KINDS:
        mode = None if kind == "float32" else kind
        line = dict(part="quality", kind=kind, tokens=windows * WINDOW)
        line |= dict(perplexity=perplexity(checkpoints, mode, windows), heard=heard(checkpoints, mode))
        lines.append(line)
    return lines


def perplexity(checkpoints: pathlib.Path, quantization: str | None, windows: int) -> float:
    """Of SmolLM2 on the first `windows` times `WINDOW` tokens of WikiText-2's test set, each window by itself."""
    from keras import ops

    import keras_xla

    layer = keras_xla.XLAGenerationLayer.from_pretrained(
        checkpoints / "smollm2-135m-instruct", quantization=quantization
    )
    text = (checkpoints / "wikitext-2" / "test.txt").read_text(encoding="utf-8")
    ids = np.array(layer.tokenizer(text)["input_ids"][: windows * WINDOW], "int32").reshape(-1, 1, WINDOW)

    @keras_xla.jit
    def log_likelihood(ids):
        scores = ops.log_softmax(layer.model(ids)[:, :-1], axis=-1)
        return ops.sum(ops.take_along_axis(scores, ids[:, 1:, None], axis=-1))

    total = sum(float(log_likelihood(ops.convert_to_tensor(window))) for window in ids)
    return float(np.exp(-total / (len(ids) * (WINDOW - 1))))


def heard(checkpoints: pathlib.Path, quantization: str | None) -> str:
    """What Whisper makes of the speech sample."""
    import keras_xla

    layer = keras_xla.XLAGenerationLayer.from_pretrained(checkpoints / "whisper-tiny.en", quantization=quantization)
    return str(layer.generate(str(checkpoints / "jfk.wav"))[0]).strip()


def report(lines: list[dict]) -> str:
    """The tables of a raw file's lines."""
    fast, good = ([line for line in lines if line["part"] == part] for part in ("speed", "quality"))
    text = ["# Weights in int8 and int4", ""]
    if fast:
        rounds = 1 + max(line["round"] for line in fast)
        text += [
            f"`python benchmarks/quantization.py`, {fast[0]['date']}, commit {fast[0]['commit']}: GPT-2 124M, random "
            f"weights, {rounds} alternating rounds, medians; {os.cpu_count()} cores. Prompt of {decode.PROMPT} tokens, "
            f"{decode.NEW} new ones. The limit is that of float32: all weights read once a step.",
            "",
            "| | batch | ms a step (min - max) | times the float32 limit | times float32 |",
            "|---|---|---|---|---|",
        ]
    for batch in sorted({line["batch"] for line in fast}):
        for backend, label in BACKENDS.items():
            mine = {
                kind: [x for x in fast if (x["batch"], x["backend"], x["kind"]) == (batch, backend, kind)]
                for kind in KINDS
            }
            for kind, each in mine.items():
                ms = [line["ms"] for line in each]
                to_limit = statistics.median(line["ms"] / line["limit"] for line in each)
                floats = [line["ms"] for line in mine["float32"]]
                to_float = statistics.median(a / b for a, b in zip(ms, floats, strict=True))
                spread = f"{statistics.median(ms):.1f} ({min(ms):.1f} - {max(ms):.1f})"
                text.append(f"| {kind}, {label} | {batch} | {spread} | {to_limit:.2f} | {to_float:.2f} |")
    if good:
        text += [
            "",
            f"Perplexity of SmolLM2-135M-Instruct on the first {good[0]['tokens']} tokens of WikiText-2's test set, "
            f"{WINDOW} at a time, and what whisper-tiny.en hears. {good[0]['date']}, commit {good[0]['commit']}. "
            "SmolLM2's weights were of 4 bits once, in groups of 32, which int8 and int4 suit better than others.",
            "",
            "| weights | perplexity | beside float32 | whisper-tiny.en hears |",
            "|---|---|---|---|",
        ]
    for line in good:
        more = f"{(line['perplexity'] / good[0]['perplexity'] - 1) * 100:+.2f} %" if line is not good[0] else ""
        hears = "the same" if more and line["heard"] == good[0]["heard"] else line["heard"]
        text.append(f"| {line['kind']} | {line['perplexity']:.3f} | {more} | {hears} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--parts", nargs="+", choices=["speed", "quality"], default=["speed", "quality"])
    args = parser.parse_args()
    lines = [json.loads(line) for line in RAW.read_text().splitlines()] if RAW.exists() else []
    for part in args.parts:
        measured = speed(args.rounds, args.batches) if part == "speed" else quality(args.checkpoints, args.windows)
        when = dict(date=time.strftime("%Y-%m-%d"), commit=commit(HERE))
        lines = [line for line in lines if line["part"] != part] + [{**line, **when} for line in measured]
        RAW.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = report(lines)
    print(text)
    RAW.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
