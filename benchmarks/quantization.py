"""What weights in int8 and int4 cost in quality, beside float32. `decode.py` has what they bring in speed.

    python benchmarks/quantization.py --checkpoints DIR

Perplexity of SmolLM2-135M-Instruct on WikiText-2, and what whisper-tiny.en hears; DIR holds `smollm2-135m-instruct`,
`whisper-tiny.en`, `wikitext-2/test.txt` and `jfk.wav`.
"""

import argparse
import pathlib
import time

import numpy as np
import raw_lines
from facts import commit

import keras_xla
from keras_xla.generation.text.logprobs import perplexity

HERE = pathlib.Path(__file__).parent
RAW = HERE / "results" / "quantization.jsonl"
KINDS = ("float32", "int8", "int4")


def measure(kind: str, args: argparse.Namespace) -> dict:
    """The line of a kind of weights."""
    how = dict(quantization=None if kind == "float32" else kind)
    layer = keras_xla.XLAGenerationLayer.from_pretrained(args.checkpoints / "smollm2-135m-instruct", **how)
    text = (args.checkpoints / "wikitext-2" / "test.txt").read_text(encoding="utf-8")
    ids = np.array(layer.tokenizer(text)["input_ids"][: args.tokens], np.int32)
    parts = [ids[first : first + args.window] for first in range(0, len(ids) - 1, args.window)]
    line = dict(kind=kind, tokens=len(ids), window=args.window, perplexity=perplexity(layer.score(parts)))
    whisper = keras_xla.XLAGenerationLayer.from_pretrained(args.checkpoints / "whisper-tiny.en", **how)
    heard = str(whisper.generate(str(args.checkpoints / "jfk.wav"))[0]).strip()
    return {**line, "heard": heard, "date": time.strftime("%Y-%m-%d"), "commit": commit(HERE)}


def report(lines: list[dict]) -> str:
    """The table of a raw file's lines."""
    first = lines[0]
    text = [
        "# What int8 and int4 cost",
        "",
        f"`python benchmarks/quantization.py`, {first['date']}, commit {first['commit']}. Perplexity of "
        f"SmolLM2-135M-Instruct on the first {first['tokens']} tokens of WikiText-2's test set, {first['window']} at a "
        "time, and what whisper-tiny.en hears. SmolLM2's weights were of 4 bits once, in groups of 32, which int8 and "
        "int4 suit better than others.",
        "",
        "| weights | perplexity | beside float32 | whisper-tiny.en hears |",
        "|---|---|---|---|",
    ]
    for line in lines:
        more = f"{(line['perplexity'] / first['perplexity'] - 1) * 100:+.2f} %" if line is not first else ""
        hears = "the same" if more and line["heard"] == first["heard"] else line["heard"]
        text.append(f"| {line['kind']} | {line['perplexity']:.3f} | {more} | {hears} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=32_768, help="of the text's beginning")
    parser.add_argument("--window", type=int, default=512, help="tokens that are scored at once")
    args = parser.parse_args()
    lines = [measure(kind, args) for kind in KINDS]
    raw_lines.write(RAW, lines)
    raw_lines.publish(RAW, report(lines))


if __name__ == "__main__":
    main()
