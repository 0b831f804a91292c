"""Weights in int8 and int4 beside float32: how fast a step is, and what it costs in quality.

    python benchmarks/quantization.py --checkpoints DIR

Speed: greedy decode of GPT-2 124M (random weights), every contender in a process of its own, rounds alternating, as in
`decode.py`. Quality: perplexity of SmolLM2-135M-Instruct on WikiText-2, and what whisper-tiny.en hears; DIR holds
`smollm2-135m-instruct`, `whisper-tiny.en`, `wikitext-2/test.txt` and `jfk.wav`.
"""

import argparse
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
WINDOW = 512  # tokens that perplexity sees at once
KINDS = ("float32", "int8", "int4")


def speed(rounds: int, batches: list[int]) -> list[str]:
    """Rows of a table."""
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        contenders = {
            (backend, kind): Contender(
                f"{kind}, {label}",
                sys.executable,
                "ours" if kind == "float32" else f"ours-{kind}",
                folder,
                KERAS_BACKEND=backend,
            )
            for backend, label in (("tensorflow", "TensorFlow"), ("jax", "JAX"))
            for kind in KINDS
        }
        for c in contenders.values():
            for batch in batches:
                c.run(batch, decode.NEW)
                c.run(batch, decode.SHORT)
        for _ in range(rounds):
            for batch in batches:
                for c in contenders.values():
                    c.step(batch)
        for c in contenders.values():
            c.process.stdin.close()
    rows = []
    for batch in batches:
        for (backend, _), c in contenders.items():
            ms, floats = c.ms[batch], contenders[backend, "float32"].ms[batch]
            to_limit = statistics.median(a / b for a, b in zip(ms, c.limits[batch], strict=True))
            to_float = statistics.median(a / b for a, b in zip(ms, floats, strict=True))
            spread = f"{statistics.median(ms):.1f} ({min(ms):.1f} - {max(ms):.1f})"
            rows.append(f"| {c.label} | {batch} | {spread} | {to_limit:.2f} | {to_float:.2f} |")
    return rows


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results" / "quantization.md")
    args = parser.parse_args()
    rows = speed(args.rounds, args.batches)
    modes = [None if kind == "float32" else kind for kind in KINDS]
    perplexities = [perplexity(args.checkpoints, mode, args.windows) for mode in modes]
    transcripts = [heard(args.checkpoints, mode) for mode in modes]
    lines = [
        "# Weights in int8 and int4",
        "",
        f"`python benchmarks/quantization.py`, {time.strftime('%Y-%m-%d')}, commit {commit(HERE)}: GPT-2 124M, random "
        f"weights, {args.rounds} alternating rounds, medians; {os.cpu_count()} cores. Prompt of {decode.PROMPT} "
        f"tokens, {decode.NEW} new ones. The limit is that of float32: all weights read once a step.",
        "",
        "| | batch | ms a step (min - max) | times the float32 limit | times float32 |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"Perplexity of SmolLM2-135M-Instruct on the first {args.windows * WINDOW} tokens of WikiText-2's test set, "
        f"{WINDOW} at a time, and what whisper-tiny.en hears. SmolLM2's weights were of 4 bits once, in groups of 32, "
        "which int8 and int4 suit better than others.",
        "",
        "| weights | perplexity | beside float32 | whisper-tiny.en hears |",
        "|---|---|---|---|",
    ]
    for kind, value, text in zip(KINDS, perplexities, transcripts, strict=True):
        more = f"{(value / perplexities[0] - 1) * 100:+.2f} %" if value != perplexities[0] else ""
        lines.append(
            f"| {kind} | {value:.3f} | {more} | {text if text != transcripts[0] or not more else 'the same'} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    args.out.write_text(text)


if __name__ == "__main__":
    main()
