"""Perplexity of SmolLM2-135M-Instruct on WikiText-2's test set: `layer.score` and PyTorch transformers, taking turns.

    python benchmarks/perplexity.py --checkpoints DIR

DIR holds `smollm2-135m-instruct` and `wikitext-2/test.txt`. Both read the same tokens, in parts of `--window` tokens by
themselves; float32. After so many parts as are in a group, it is the other's turn.
"""

import argparse
import math
import pathlib
import time

import numpy as np
import raw_lines
from facts import measured, told

HERE = pathlib.Path(__file__).resolve().parent
RAW = HERE / "results" / "perplexity.jsonl"
GROUP, NEAR = 64, 1e-4


def measure(args: argparse.Namespace) -> list[dict]:
    """A raw line for each group of parts."""
    import torch
    import transformers

    import keras_xla

    def reference(model, part: np.ndarray) -> np.ndarray:
        """The log-probabilities of all tokens of a part but the first."""
        given = torch.tensor(part[None].astype(np.int64))
        with torch.no_grad():
            logits = torch.log_softmax(model(given).logits[0, :-1], dim=-1)
        return logits.gather(1, given[0, 1:, None])[:, 0].numpy()

    source = args.checkpoints / "smollm2-135m-instruct"
    layer = keras_xla.XLAGenerationLayer.from_pretrained(source)
    model, exact = (
        transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval()
        for dtype in (torch.float32, torch.float64)
    )
    text = (args.checkpoints / "wikitext-2" / "test.txt").read_text(encoding="utf-8")
    ids = np.array(layer.tokenizer(text)["input_ids"][: args.tokens], np.int32)
    parts = [ids[first : first + args.window] for first in range(0, len(ids) - 1, args.window)]
    for group in filter(None, (parts[:GROUP], parts[len(parts) - len(parts) % GROUP :])):
        layer.score(group)  # compiles what the others need
    reference(model, parts[0])  # makes threads
    when, lines = measured("keras", "tensorflow", "torch", "transformers"), []
    for first in range(0, len(parts), GROUP):
        group = parts[first : first + GROUP]
        start = time.perf_counter()
        ours = [scored.logprobs for scored in layer.score(group)]
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        theirs = [reference(model, part) for part in group]
        their_seconds = time.perf_counter() - start
        apart = [np.abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        farthest = max(range(len(group)), key=lambda i: apart[i].max())
        best = reference(exact, group[farthest])
        lines.append(
            dict(
                window=args.window,
                tokens=sum(map(len, group)),
                scored=sum(map(len, ours)),
                ours=float(np.concatenate(ours).sum(dtype=np.float64)),
                theirs=float(np.concatenate(theirs).sum(dtype=np.float64)),
                seconds=seconds,
                their_seconds=their_seconds,
                near=int(np.sum(np.concatenate(apart) <= NEAR)),
                apart=float(apart[farthest].max()),
                our_error=float(np.abs(ours[farthest] - best).max()),
                their_error=float(np.abs(theirs[farthest] - best).max()),
                **when,
            )
        )
        raw_lines.write(args.raw, lines)
    return lines


def report(lines: list[dict]) -> str:
    """The page of raw lines."""

    def total(name):
        return sum(line[name] for line in lines)

    farthest, count = max(lines, key=lambda line: line["apart"]), total("scored")
    ours, theirs = (math.exp(-total(name) / count) for name in ("ours", "theirs"))
    text = [
        "# Perplexity beside PyTorch's",
        "",
        f"`python benchmarks/perplexity.py`, {told(lines[0])}. SmolLM2-135M-Instruct, float32, {total('tokens')} "
        f"tokens of WikiText-2's test set, {lines[0]['window']} at a time. After {GROUP} parts of so many tokens it is "
        "the other's turn.",
        "",
        "| | perplexity | seconds |",
        "|---|---|---|",
        f"| `layer.score` | {ours:.4f} | {total('seconds'):.0f} |",
        f"| PyTorch transformers | {theirs:.4f} | {total('their_seconds'):.0f} |",
        "",
        f"Of the log-probabilities {100 * total('near') / count:.3f} % differ by at most {NEAR:.0e}, and none by more "
        f"than {farthest['apart']:.1e}. In the part with that one, PyTorch's are up to {farthest['their_error']:.1e} "
        f"from those of its float64 (in which its norms stay float32), and those of `layer.score` up to "
        f"{farthest['our_error']:.1e}.",
    ]
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--tokens", type=int, help="of the text's beginning; all by default")
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the page stands beside them")
    args = parser.parse_args()
    raw_lines.publish(args.raw, report(measure(args)))


if __name__ == "__main__":
    main()
