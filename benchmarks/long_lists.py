"""1,000 prompts in one call: rows that make room for waiting prompts, sorted batches, and one batch after the other.

    cd benchmarks/results; python ../long_lists.py --raw long_lists.jsonl > long_lists.md

One process, SmolLM2-135M-Instruct, float32, greedy. Prompts have 20 to 200 tokens, answers end by themselves or after
`--new` tokens. The ways take turns, each round begins with another one; a first, short list compiles. All answers are
compared. A line a call goes to the raw file; ratios are medians over the rounds.
"""

import argparse
import json
import pathlib
import random
import resource
import statistics
import sys
import time

import numpy as np
from bandwidth import read_bandwidth
from facts import facts, said

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "examples"))

import smollm2  # noqa: E402  (a script in another folder)

import keras_xla  # noqa: E402

THINGS = [
    *("a violin", "the sea", "bread", "a lighthouse", "winter", "a bicycle", "the moon", "honey", "a library"),
    *("a market", "rain", "a garden", "an old map", "the desert", "a train", "a bridge", "tea", "a kite", "a mountain"),
    *("a clock", "chess", "a river", "paper", "a mirror", "salt"),
]
TASKS = (
    "Name one colour that goes with {}. Answer with one word.",
    "Is {} larger than a house? Answer with yes or no.",
    "Write one short sentence about {}.",
    "Explain to a child what {} is good for.",
    "Write a story about {}.",
    "List five facts about {}.",
    "Translate into French: I like {}.",
    "What would the world be without {}? Give three reasons.",
)
TEXT = (
    "Rome is the capital of Italy. It was founded, as the legend has it, in 753 BC by Romulus and Remus. For a "
    "thousand years it was the centre of the Roman Empire. Today almost three million people live there, and many more "
    "come to see the Colosseum, the Forum and the Vatican. "
)


def prompts(count: int) -> list[str]:
    """Always the same ones; a third begins with one to three paragraphs."""
    draw, made = random.Random(0), []
    for _ in range(count):
        before = TEXT * draw.choice([0, 0, 0, 0, 1, 2])
        made.append(before + draw.choice(TASKS).format(draw.choice(THINGS)))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--new", type=int, default=96, help="tokens of an answer at most")
    parser.add_argument("--batch", type=int, default=32, help="rows that run at once at most")
    parser.add_argument("--raw", type=pathlib.Path)
    args = parser.parse_args()
    layer = keras_xla.XLAGenerationLayer.from_pretrained(
        smollm2.fetch(), max_new_tokens=args.new, batch_buckets=(args.batch,), do_sample=False
    )
    refill = layer._generator._refill
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts(args.count)]
    rows = [
        np.array(row, np.int32).tolist()
        for row in layer.tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    ]

    def refilled(rows):
        return layer.generate(rows, verbose=0)

    def sorted_batches(rows):
        refill.worth_it, before = (lambda *arguments: None), refill.worth_it
        try:
            return layer.generate(rows, verbose=0)
        finally:
            refill.worth_it = before

    def in_order(rows):
        made = [layer.generate(rows[i : i + args.batch], verbose=0) for i in range(0, len(rows), args.batch)]
        return {name: np.concatenate([each[name] for each in made]) for name in made[0]}

    ways = {"rows make room": refilled, "sorted batches": sorted_batches, "one batch after the other": in_order}
    known = facts()
    lines, differ, names = [], 0, list(ways)
    for turn in range(-1, args.rounds):  # the first compiles
        these, limit, made = (rows if turn >= 0 else rows[: 4 * args.batch]), read_bandwidth(), {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            made[name] = ways[name](these)
            seconds = time.perf_counter() - start
            line = dict(round=turn, way=name, seconds=seconds, prompts=len(these))
            line |= dict(tokens=int(made[name]["lengths"].sum()), bandwidth=limit, **known)
            line["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            lines.append(line)
            print(line, file=sys.stderr, flush=True)
        wanted = made[names[-1]]
        differ += sum((each["sequences"] != wanted["sequences"]).any(axis=1).sum() for each in made.values()) * (
            turn >= 0
        )
    if args.raw:
        args.raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lengths = made[names[0]]["lengths"]
    print("# Long lists of prompts\n")
    print(
        f"`python benchmarks/long_lists.py`, {said()}. SmolLM2-135M-Instruct, float32, greedy; {args.count} prompts of "
        f"{min(map(len, rows))} to {max(map(len, rows))} tokens, answers of {lengths.min()} to {lengths.max()} (median "
        f"{np.median(lengths):.0f}), {args.batch} rows at once, {args.rounds} rounds. Answers that are not those of "
        f"one batch after the other, over all rounds: {differ}. A ratio is the median over the rounds.\n"
    )
    print("| way | tokens a second | times as fast as one batch after the other | lowest round |\n|---|---|---|---|")
    for name in names:
        of = {way: [line for line in lines if line["way"] == way and line["round"] >= 0] for way in (name, names[-1])}
        ratios = [b["seconds"] / a["seconds"] for a, b in zip(of[name], of[names[-1]], strict=True)]
        speed = statistics.median(line["tokens"] / line["seconds"] for line in of[name])
        print(f"| {name} | {speed:.0f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} |")


if __name__ == "__main__":
    main()
