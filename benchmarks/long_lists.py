"""1,000 prompts in one call: rows that make room for waiting prompts, sorted batches, and one batch after the other.

    cd benchmarks/results; python ../long_lists.py > long_lists.md

One process, SmolLM2-135M-Instruct, float32, greedy. Prompts have 20 to 200 tokens, answers end by themselves or after
`--new` tokens. The ways take turns, each round begins with another one; short lists before compile. All answers are
compared. A line a call goes to the raw file, and the same command goes on where it was cut off.
"""

import argparse
import pathlib
import random
import resource
import statistics
import sys
import time
import zlib

import numpy as np
import raw_lines
from bandwidth import read_bandwidth
from facts import facts

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "examples"))

import smollm2  # noqa: E402  (a script in another folder)

import keras_xla  # noqa: E402

WAYS = ("rows make room", "sorted batches", "one batch after the other")
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


def rows_of(layer, count: int) -> list[list[int]]:
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts(count)]
    ids = layer.tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    return [np.array(row, np.int32).tolist() for row in ids]


def ways_of(layer, batch: int) -> dict:
    """Functions from rows to outputs."""
    batching = layer._generator._continuous

    def continuously(rows):
        return layer.generate(rows, verbose=0)

    def sorted_batches(rows):
        batching.worth_it, before = (lambda *arguments: None), batching.worth_it
        try:
            return layer.generate(rows, verbose=0)
        finally:
            batching.worth_it = before

    def in_order(rows):
        made = [layer.generate(rows[i : i + batch], verbose=0) for i in range(0, len(rows), batch)]
        return {name: np.concatenate([each[name] for each in made]) for name in made[0]}

    return {WAYS[0]: continuously, WAYS[1]: sorted_batches, WAYS[2]: in_order}


def measure(args: argparse.Namespace) -> None:
    """Append a line a call to the raw file; a round that is there is left out."""
    layer = keras_xla.XLAGenerationLayer.from_pretrained(
        smollm2.fetch(), max_new_tokens=args.new, batch_buckets=(args.batch,), do_sample=False
    )
    rows, ways, known = rows_of(layer, args.count), ways_of(layer, args.batch), facts()
    lengths = list(map(len, rows))
    known |= dict(count=args.count, new=args.new, batch=args.batch, shortest=min(lengths), longest=max(lengths))
    done = {(line["round"], line["way"]) for line in raw_lines.of_the_same(args.raw, known)}
    for way in WAYS:  # compiles
        ways[way](rows[: 2 * args.batch])
    for turn in range(args.rounds):
        limit = read_bandwidth()
        for way in (*WAYS[turn % len(WAYS) :], *WAYS[: turn % len(WAYS)]):
            if (turn, way) in done:
                continue
            start = time.perf_counter()
            made = ways[way](rows)
            line = dict(round=turn, way=way, seconds=time.perf_counter() - start, tokens=int(made["lengths"].sum()))
            line |= dict(answers=[zlib.crc32(row.tobytes()) for row in made["sequences"]], bandwidth=limit, **known)
            line |= dict(answer_lengths=[int(made["lengths"].min()), float(np.median(made["lengths"]))])
            line["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            raw_lines.append(args.raw, [line])
            print(turn, way, f"{line['seconds']:.0f} s", file=sys.stderr, flush=True)


def report(lines: list[dict]) -> str:
    """The page, of the rounds that are complete."""
    rounds = [turn for turn in {line["round"] for line in lines} if sum(line["round"] == turn for line in lines) == 3]
    of = {(line["round"], line["way"]): line for line in lines if line["round"] in rounds}
    first = lines[0]
    pairs = [(of[turn, way], of[turn, WAYS[2]]) for turn in rounds for way in WAYS[:2]]
    differ = sum(a != b for one, other in pairs for a, b in zip(one["answers"], other["answers"], strict=True))
    least, middle = first["answer_lengths"]
    held = max(line["peak_bytes"] for line in lines) / 2**30
    made = [
        "# Long lists of prompts\n",
        f"`python benchmarks/long_lists.py`, {first['date']}, commit {first['commit']}, keras {first['keras']} on "
        f"{first['backend']}. SmolLM2-135M-Instruct, float32, greedy; {first['count']} prompts of {first['shortest']} "
        f"to {first['longest']} tokens, answers of {least} to {first['new']} (median {middle:.0f}), {first['batch']} "
        f"rows at once, rounds: {len(rounds)}. Answers that are not those of one batch after the other: {differ} of "
        f"{2 * len(rounds) * first['count']}. A ratio is the median over the rounds. The whole process held at most "
        f"{held:.1f} GiB.\n",
        "| way | tokens a second | times as fast as one batch after the other | lowest round |",
        "|---|---|---|---|",
    ]
    for way in WAYS:
        ratios = [of[turn, WAYS[2]]["seconds"] / of[turn, way]["seconds"] for turn in rounds]
        speed = statistics.median(of[turn, way]["tokens"] / of[turn, way]["seconds"] for turn in rounds)
        made.append(f"| {way} | {speed:.0f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} |")
    return "\n".join(made) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--new", type=int, default=96, help="tokens of an answer at most")
    parser.add_argument("--batch", type=int, default=32, help="rows that run at once at most")
    parser.add_argument("--raw", type=pathlib.Path, default="long_lists.jsonl")
    parser.add_argument("--report", action="store_true", help="measure nothing: make the page of the raw lines")
    args = parser.parse_args()
    if not args.report:
        measure(args)
    print(report(raw_lines.read(args.raw)), end="")


if __name__ == "__main__":
    main()
