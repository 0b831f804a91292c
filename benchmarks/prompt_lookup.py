"""SmolLM2-135M with guesses from the prompt and without: answers that repeat their prompt, and answers that do not.

    cd benchmarks/results; python ../prompt_lookup.py > prompt_lookup.md

One process, float32, greedy. Both ways answer each set of prompts in turns, each round begins with the other way. Every
answer is compared: guesses must not change it. A line a call goes to the raw file; ratios are medians over the rounds.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import numpy as np
from bandwidth import read_bandwidth
from facts import facts

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "examples"))

import smollm2  # noqa: E402  (a script in another folder)

import keras_xla  # noqa: E402
from keras_xla.engine.runs.watch import Watch  # noqa: E402

TEXTS = (
    "Rome is the capital of Italy. It was founded, as the legend has it, in 753 BC by Romulus and Remus. For a "
    "thousand years it was the centre of the Roman Empire. Today almost three million people live there, and many "
    "more come to see the Colosseum, the Forum and the Vatican.",
    "To make tea, bring a litre of fresh water to the boil. Warm the pot with a little of it, and pour that away. Put"
    " in one spoon of leaves for each person and one for the pot. Pour the boiling water over them, wait for four "
    "minutes, and pour the tea through a strainer.",
    "The library opens at nine in the morning and closes at seven in the evening. On Saturdays it closes at two. "
    "Books can be kept for four weeks, films and music for one. Whoever returns a book late pays ten cents a day for "
    "each of them, children pay nothing.",
    "A honey bee visits up to a hundred flowers before it returns to its hive. It carries the nectar in a second "
    "stomach that is there for nothing else. In the hive other bees chew it, pass it on and dry it with their wings, "
    "until it has become honey. A bee makes about a twelfth of a teaspoon in its life.",
)
TEXT_TASKS = (
    "Repeat this text word for word:\n\n{}",
    "Correct the spelling of this text, and write out all of it:\n\n{}",
    "Copy the following text:\n\n{}",
)
CODES = (
    """def report(prices, taxes):
    total = 0
    for price, tax in zip(prices, taxes):
        total = total + price + price * tax
    if total > 1000:
        print("The total is large:", total)
    else:
        print("The total is small:", total)
    return total
""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
""",
    """def count_words(path):
    counts = {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1
    return counts
""",
)
CODE_TASKS = (
    "Write out this code once more:\n\n{}",
    "Add a comment to the first line, and write out all of the code:\n\n{}",
    "Repeat this code with the same names:\n\n{}",
)
TOWNS = ("Berlin", "Madrid", "Paris", "Vienna", "Warsaw", "Lisbon", "Athens", "Oslo", "Prague", "Dublin")
LIST = "\n".join(f"{i}. {town}" for i, town in enumerate(TOWNS, 1))
KINDS = {
    "repeats a text": [task.format(text) for task in TEXT_TASKS for text in TEXTS],
    "repeats code, or a list": [
        *(task.format(code) for task in CODE_TASKS for code in CODES),
        *(f"{task}:\n\n{LIST}" for task in ("Write this list once more", "Repeat this list", "Copy this list")),
    ],
    "does not repeat": [
        "Tell me a story about a fox who wants to become a teacher.",
        "Why is the sky blue, and why are sunsets red?",
        "What should I think of when I plan a garden?",
        "Write a letter to a friend who has moved to another country.",
        "Describe a busy market on a summer morning.",
        "How does a bicycle stay upright?",
        "Explain to a child why leaves fall in autumn.",
        "What makes a good leader?",
        "Write a poem about the sea.",
        "How can I sleep better?",
        "Tell me about the history of chess.",
        "Why do people like music?",
        "Give me advice for my first day at a new job.",
        "What would a day on the moon be like?",
        "How is paper made?",
        "Write a short dialogue between a cat and a dog.",
        "What are the advantages of a small town?",
        "How do I learn a new language?",
        "Describe your favourite room in an old house.",
        "Why is bread so important in many cultures?",
        "What can we do against noise in cities?",
        "Tell a story that ends with a lost umbrella.",
        "How do birds find their way in winter?",
        "What is the difference between weather and climate?",
        "Write an invitation to a birthday party.",
        "What did people do in the evening before there was electric light?",
    ],
}
BATCHES = (1, 4)


def answer(layer, rows, options):
    """Seconds, the tokens of each row, and how often the model ran in them: without guesses, and with them."""
    start = time.perf_counter()
    run = layer._generator.start(rows, options)
    for _ in run.advance(Watch()):
        pass
    out = run.outputs()
    seconds = time.perf_counter() - start
    runs = getattr(run.generation, "runs", np.array([out["lengths"].max(), 0]))
    run.close()
    return seconds, [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)], runs.tolist()


def rows_of(layer, prompts):
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    ids = layer.tokenizer.apply_chat_template(chats, add_generation_prompt=True)
    return [np.array(row, np.int32) for row in ids["input_ids"]]


def measure(layer, rounds: int, guesses: int, said_of: dict) -> list[dict]:
    """A line a call."""
    plain = layer.options.replace(do_sample=False)
    ways = {"plain": plain, "guesses": plain.replace(prompt_lookup_num_tokens=guesses)}
    lines = []
    for turn in range(-1, rounds):  # the first compiles, and learns what a run takes
        limit = read_bandwidth()
        for kind, prompts in KINDS.items():
            each = rows_of(layer, prompts if turn >= 0 else prompts[: max(BATCHES)])
            for batch in BATCHES:
                for i in range(0, len(each), batch):
                    made, mine = {}, []
                    for way in list(ways)[:: -1 if turn % 2 else 1]:
                        seconds, made[way], runs = answer(layer, each[i : i + batch], ways[way])
                        line = dict(round=turn, kind=kind, batch=batch, first=i, way=way, seconds=seconds, runs=runs)
                        line |= dict(tokens=sum(map(len, made[way])), bandwidth=limit, **said_of)
                        mine.append(line)
                    same = made["plain"] == made["guesses"]
                    lines += [{**line, "same": same} for line in mine]
    return lines


def report(lines: list[dict], guesses: int) -> str:
    """The page."""
    rounds = max(line["round"] for line in lines) + 1
    counted = [line for line in lines if line["round"] >= 0]
    many = ", ".join(f"{len(prompts)} of an answer that {kind}" for kind, prompts in KINDS.items())
    differ = sum(not line["same"] for line in counted if line["way"] == "guesses")
    first = lines[0]
    made = [
        "# Guesses from the prompt\n",
        f"`python benchmarks/prompt_lookup.py`, {first['date']}, commit {first['commit']}, keras {first['keras']} on "
        f"{first['backend']}. SmolLM2-135M-Instruct, float32, greedy, at most {first['new']} new tokens, "
        f"prompt_lookup_num_tokens={guesses}, {rounds} rounds. Prompts: {many}. Calls whose tokens differ: {differ}. "
        "A ratio is the median over the rounds of what all prompts took together; the prompts' own runs are part of "
        "it. A batch waits for its slowest row.\n",
        "| the answer | batch | runs of the model a token | times as fast | lowest round | single calls |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        for batch in BATCHES:
            of = [line for line in counted if (line["kind"], line["batch"]) == (kind, batch)]

            def total(way, field, turn=None, of=of):
                mine = [line for line in of if line["way"] == way and turn in (None, line["round"])]
                return sum(np.sum(line[field]) for line in mine)

            ratios = [total("plain", "seconds", turn) / total("guesses", "seconds", turn) for turn in range(rounds)]
            firsts = sorted({line["first"] for line in of})
            single = [
                statistics.median(line["seconds"] for line in of if (line["first"], line["way"]) == (i, "plain"))
                / statistics.median(line["seconds"] for line in of if (line["first"], line["way"]) == (i, "guesses"))
                for i in firsts
            ]
            runs = total("guesses", "runs") / total("plain", "runs")  # a plain run is one token of each row
            made.append(
                f"| {kind} | {batch} | {runs:.2f} | {statistics.median(ratios):.2f}x | {min(ratios):.2f}x | "
                f"{min(single):.2f}x - {max(single):.2f}x |"
            )
    return "\n".join(made)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer at most")
    parser.add_argument("--guesses", type=int, default=8)
    parser.add_argument("--raw", type=pathlib.Path, default="prompt_lookup.jsonl")
    parser.add_argument("--report", action="store_true", help="measure nothing: make the page of the raw lines")
    args = parser.parse_args()
    if not args.report:
        layer = keras_xla.XLAGenerationLayer.from_pretrained(smollm2.fetch(), max_new_tokens=args.new)
        lines = measure(layer, args.rounds, args.guesses, {**facts(), "new": args.new})
        args.raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(report([json.loads(line) for line in args.raw.read_text().splitlines()], args.guesses))


if __name__ == "__main__":
    main()
