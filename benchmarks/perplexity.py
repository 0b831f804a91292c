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


def reference(model: torch.nn.Module, part: np.ndarray) -> np.ndarray:
    """The log-probabilities of all tokens of a part but the first, by PyTorch."""
    given = torch.tensor(part[None].astype(np.int64))
    with torch.no_grad():
        logits = torch.log_softmax(model(given).logits[0, :-1], dim=-1)
    return logits.gather(1, given[0, 1:, None])[:, 0].numpy()


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
    start = time.perf_counter()
    theirs = [reference(model, part) for part in parts]
    their_seconds = time.perf_counter() - start
    apart = [np.abs(one - mine.logprobs) for one, mine in zip(theirs, scored, strict=True)]
    farthest = max(range(len(parts)), key=lambda i: apart[i].max())
    exact = reference(model.double(), parts[farthest])
    their_error, our_error = (np.abs(exact - each).max() for each in (theirs[farthest], scored[farthest].logprobs))
    total = np.concatenate(theirs).sum(dtype=np.float64)
    count = sum(len(part) - 1 for part in parts)
    print("# Perplexity beside PyTorch's\n")
    print(
        f"`python benchmarks/perplexity.py`, {said()}, transformers {transformers.__version__}, torch "
        f"{torch.__version__}. SmolLM2-135M-Instruct, float32, {len(ids)} tokens of WikiText-2's test set, "
        f"{args.window} at a time.\n"
    )
    print("| | perplexity | seconds |\n|---|---|---|")
    print(f"| `layer.score` | {ours:.4f} | {seconds:.0f} |")
    print(f"| PyTorch transformers | {np.exp(-total / count):.4f} | {their_seconds:.0f} |")
    within = np.mean(np.concatenate(apart) <= 1e-4)
    print(
        f"\nOf the log-probabilities {100 * within:.3f} % differ by at most 1e-4, and none by more than "
        f"{apart[farthest].max():.1e}. In the part with that one, PyTorch's are up to {their_error:.1e} from those of "
        f"its float64 (in which its norms stay float32), and those of `layer.score` up to {our_error:.1e}."
    )


if __name__ == "__main__":
    main()
