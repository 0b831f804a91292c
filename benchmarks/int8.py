"""Weights in int8 beside float32: how fast a step is, and what it costs in quality.

    python benchmarks/int8.py --checkpoints DIR

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


def speed(rounds: int, batches: list[int]) -> list[str]:
    """Rows of a table."""
    tf, jax = {"KERAS_BACKEND": "tensorflow"}, {"KERAS_BACKEND": "jax"}
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        contenders = [
            Contender("float32, TensorFlow", sys.executable, "ours", folder, **tf),
            Contender("int8, TensorFlow", sys.executable, "ours-int8", folder, **tf),
            Contender("float32, JAX", sys.executable, "ours", folder, **jax),
            Contender("int8, JAX", sys.executable, "ours-int8", folder, **jax),
        ]
        for c in contenders:
            for batch in batches:
                c.run(batch, decode.NEW)
                c.run(batch, decode.SHORT)
        for _ in range(rounds):
            for batch in batches:
                for c in contenders:
                    c.step(batch)
        for c in contenders:
            c.process.stdin.close()
    rows = []
    for batch in batches:
        for c, floats in zip(contenders, (contenders[0], contenders[0], contenders[2], contenders[2]), strict=True):
            ms = c.ms[batch]
            to_limit = statistics.median(a / b for a, b in zip(ms, c.limits[batch], strict=True))
            to_float = statistics.median(a / b for a, b in zip(ms, floats.ms[batch], strict=True))
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
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results" / "int8.md")
    args = parser.parse_args()
    rows = speed(args.rounds, args.batches)
    kinds = (None, "int8")
    perplexities = [perplexity(args.checkpoints, kind, args.windows) for kind in kinds]
    transcripts = [heard(args.checkpoints, kind) for kind in kinds]
    more = (perplexities[1] / perplexities[0] - 1) * 100
    lines = [
        "# Weights in int8",
        "",
        f"`python benchmarks/int8.py`, {time.strftime('%Y-%m-%d')}, commit {commit(HERE)}: GPT-2 124M, random weights, "
        f"{args.rounds} alternating rounds, medians; {os.cpu_count()} cores. Prompt of {decode.PROMPT} tokens, "
        f"{decode.NEW} new ones. The limit is that of float32: all weights read once a step.",
        "",
        "| | batch | ms a step (min - max) | times the float32 limit | times float32 |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"Perplexity of SmolLM2-135M-Instruct on the first {args.windows * WINDOW} tokens of WikiText-2's test set, "
        f"{WINDOW} at a time: {perplexities[0]:.3f} in float32, {perplexities[1]:.3f} in int8 ({more:+.2f} %). The "
        "checkpoint's weights were of 4 bits once, which int8 suits better than others.",
        "",
        f"Whisper tiny.en hears in float32: {transcripts[0]!r}; in int8 "
        + ("the same." if transcripts[0] == transcripts[1] else f"{transcripts[1]!r}."),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    args.out.write_text(text)


if __name__ == "__main__":
    main()
