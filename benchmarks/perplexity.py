"""Perplexity of SmolLM2-135M-Instruct on WikiText-2's test set: `layer.score` and PyTorch transformers, side by side.

    cd benchmarks/results; python ../perplexity.py --checkpoints DIR > perplexity.md

DIR holds `smollm2-135m-instruct` and `wikitext-2/test.txt`. Both read the same tokens, in parts of `--window` tokens by
themselves; float32.
"""

import argparse
import pathlib
import time

import numpy as np
import torch
import transformers
from facts import said

import keras_xla
from keras_xla.generation.text.logprobs import perplexity

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--tokens", type=int, help="of the text's beginning; all by default")
    args = parser.parse_args()
    source = args.checkpoints / "smollm2-135m-instruct"
    layer = keras_xla.XLAGenerationLayer.from_pretrained(source)
    text = (args.checkpoints / "wikitext-2" / "test.txt").read_text(encoding="utf-8")
    ids = np.array(layer.tokenizer(text)["input_ids"][: args.tokens], np.int32)
    parts = [ids[first : first + args.window] for first in range(0, len(ids) - 1, args.window)]

    start = time.perf_counter()
    scored = layer.score(parts)
    seconds = time.perf_counter() - start
    ours = perplexity(scored)

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    start, total, furthest = time.perf_counter(), 0.0, 0.0
    for part, mine in zip(parts, scored, strict=True):
        given = torch.tensor(part[None].astype(np.int64))
        with torch.no_grad():
            logits = torch.log_softmax(model(given).logits[0, :-1], dim=-1)
        theirs = logits.gather(1, given[0, 1:, None])[:, 0].numpy()
        total, furthest = total + theirs.sum(dtype=np.float64), max(furthest, np.abs(theirs - mine.logprobs).max())
    count = sum(len(part) - 1 for part in parts)
    print("# Perplexity beside PyTorch's\n")
    print(
        f"`python benchmarks/perplexity.py`, {said()}, transformers {transformers.__version__}, torch "
        f"{torch.__version__}. SmolLM2-135M-Instruct, float32, {len(ids)} tokens of WikiText-2's test set, "
        f"{args.window} at a time.\n"
    )
    print("| | perplexity | seconds |\n|---|---|---|")
    print(f"| `layer.score` | {ours:.4f} | {seconds:.0f} |")
    print(f"| PyTorch transformers | {np.exp(-total / count):.4f} | {time.perf_counter() - start:.0f} |")
    print(f"\nThe log-probability that differs most differs by {furthest:.1e}.")


if __name__ == "__main__":
    main()
