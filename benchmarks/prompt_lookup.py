"""SmolLM2-135M with guesses from the prompt and without: answers that repeat their prompt, and answers that do not.

    cd benchmarks/results; python ../prompt_lookup.py --raw prompt_lookup.jsonl > prompt_lookup.md

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
from facts import facts, said

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "examples"))

import smollm2  # noqa: E402  (a script in another folder)

import keras_xla  # noqa: E402
from keras_xla.engine.watch import Watch  # noqa: E402

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
    "repeats its prompt": [
        *(task.format(text) for task in TEXT_TASKS for text in TEXTS),
        *(task.format(code) for task in CODE_TASKS for code in CODES),
        *(f"{task}:\n\n{LIST}" for task in ("Write this list once more", "Repeat this list", "Copy this list")),
    ],
    "does not": [
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer at most")
    parser.add_argument("--guesses", type=int, default=8)
    parser.add_argument("--raw", type=pathlib.Path)
    args = parser.parse_args()
    layer = keras_xla.XLAGenerationLayer.from_pretrained(smollm2.fetch(), max_new_tokens=args.new)
    plain = layer.options.replace(do_sample=False)
    ways = {"plain": plain, "guesses": plain.replace(prompt_lookup_num_tokens=args.guesses)}
    known = facts()
    lines, differ = [], 0
    for turn in range(-1, args.rounds):  # the first compiles, and learns what a run takes
        limit = read_bandwidth()
        for kind, prompts in KINDS.items():
            each = rows_of(layer, prompts if turn >= 0 else prompts[: max(BATCHES)])
            for batch in BATCHES:
                for i in range(0, len(each), batch):
                    made = {}
                    for way in list(ways)[:: -1 if turn % 2 else 1]:
                        seconds, tokens, runs = answer(layer, each[i : i + batch], ways[way])
                        made[way] = tokens
                        line = dict(round=turn, kind=kind, batch=batch, first=i, way=way, seconds=seconds)
                        lines.append(
                            {**line, "tokens": sum(map(len, tokens)), "runs": runs, "bandwidth": limit, **known}
                        )
                    differ += turn >= 0 and made["plain"] != made["guesses"]
    if args.raw:
        args.raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    many = " and ".join(str(len(prompts)) for prompts in KINDS.values())
    print("# Guesses from the prompt\n")
    print(
        f"`python benchmarks/prompt_lookup.py`, {said()}. SmolLM2-135M-Instruct, float32, greedy, at most {args.new} "
        f"new tokens, prompt_lookup_num_tokens={args.guesses}, {many} prompts, {args.rounds} rounds. Calls whose "
        f"answers differ: {differ}. A ratio is the median over the rounds of what all prompts took together; the "
        "prompts' own runs are part of it.\n"
    )
    print("| the answer | batch | runs of the model a token | times as fast | lowest round |\n|---|---|---|---|---|")
    for kind in KINDS:
        for batch in BATCHES:
            of = [line for line in lines if (line["kind"], line["batch"]) == (kind, batch) and line["round"] >= 0]

            def total(way, turn, of=of):
                return sum(line["seconds"] for line in of if (line["way"], line["round"]) == (way, turn))

            ratios = [total("plain", turn) / total("guesses", turn) for turn in range(args.rounds)]
            sums = {
                way: sum(sum(line["runs"]) for line in of if line["way"] == way) for way in ways
            }  # a plain run is one token of each row
            print(
                f"| {kind} | {batch} | {sums['guesses'] / sums['plain']:.2f} | {statistics.median(ratios):.2f} | "
                f"{min(ratios):.2f} |"
            )


if __name__ == "__main__":
    main()
