"""SmolLM2-135M with guesses and without: answers that repeat their prompt, and answers that do not.

    cd benchmarks/results; python ../guesses.py > guesses.md

Guesses come from the prompt, or from an assistant: the same model in int8. One process, float32, greedy. The ways
answer each set of prompts together, half a second each in turns; each round begins with another one. Every answer is
compared: guesses must not change it. A line a call goes to the raw file; what is there is not measured again. Ratios
are medians over the rounds.
"""

import argparse
import pathlib
import statistics
import sys
import time

import numpy as np
import raw_lines
from bandwidth import read_bandwidth
from facts import facts
from questions import QUESTIONS

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "examples"))

import smollm2  # noqa: E402  (a script in another folder)

import keras_xla  # noqa: E402
from keras_xla.engine.runs.deadline import Deadline  # noqa: E402

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
# Longer than what a model of this size explains afterwards, and what is asked of each.
EDITS = {
    """import csv


def read_prices(path):
    prices = {}
    with open(path) as file:
        for row in csv.DictReader(file):
            name = row["name"].strip().lower()
            price = float(row["price"])
            if price < 0:
                raise ValueError("A price is below zero: " + name)
            if name in prices:
                prices[name].append(price)
            else:
                prices[name] = [price]
    return prices
""": (
        "Rename `prices` to `costs` in this code",
        "Add a docstring to the function in this code",
        'Replace the error message in this code by "bad price"',
    ),
    """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("The amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("There is not enough money")
        self.balance -= amount
        self.history.append(("withdraw", amount))
""": (
        "Rename `balance` to `money` in this code",
        "Add a method `close` to the class in this code",
        "Change the default balance in this code to 100",
    ),
    """def merge_sort(items):
    if len(items) <= 1:
        return items
    middle = len(items) // 2
    left = merge_sort(items[:middle])
    right = merge_sort(items[middle:])
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]
""": (
        "Rename `merged` to `result` in this code",
        "Add a docstring to the function in this code",
        "Sort in descending order in this code",
    ),
    """import time


class Timer:
    def __init__(self, name):
        self.name = name
        self.seconds = []

    def __enter__(self):
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error):
        self.seconds.append(time.perf_counter() - self.start)
        print(f"{self.name} took {self.seconds[-1]:.3f} seconds")

    def mean(self):
        if not self.seconds:
            raise ValueError("The timer has not run yet")
        return sum(self.seconds) / len(self.seconds)
""": (
        "Rename `seconds` to `times` in this code",
        "Add a docstring to the class in this code",
        'Replace the error message in this code by "not yet"',
    ),
}
LIST = "\n".join(f"{i}. {town}" for i, town in enumerate(TOWNS, 1))
KINDS = {
    "repeats a text": [task.format(text) for task in TEXT_TASKS for text in TEXTS],
    "edits code": [f"{task}, and write out all of it:\n\n{code}" for code, tasks in EDITS.items() for task in tasks],
    "repeats short code, or a list": [
        *(task.format(code) for task in CODE_TASKS for code in CODES),
        *(f"{task}:\n\n{LIST}" for task in ("Write this list once more", "Repeat this list", "Copy this list")),
    ],
    "does not repeat": list(QUESTIONS),
}
BATCHES = (1, 4)
OVER = object()
ALIKE = 4  # tokens in a row that make an answer a repetition
MEASURED = "runs per token | times as fast | decoding | lowest round | single calls"
SHARES = (0.9, 0.7, 0.4, 0.1, 0.0)  # of an answer that is repeated, at least
GUESSED = {
    "from the prompt": "`prompt_lookup_num_tokens={guesses}`",
    "from an assistant": "`num_assistant_tokens={assistant}`; the assistant is the same model in int8",
}


def answers(layer, rows, ways: dict[str, tuple], order: list[str]) -> dict[str, tuple]:
    """Of each way the seconds, those for the prompts among them, the tokens, and how often the model ran.

    The model runs without guesses, and with them: two numbers.

    The ways advance in turns, a call of the executable (half a second) each: next is the one that has the fewest
    tokens. So what else the machine does falls on all of them alike.
    """
    seconds, prompts, runs, length = {}, {}, {}, {}
    for way in order:
        options, assistant = ways[way]
        start = time.perf_counter()
        runs[way] = layer._generator.start(rows, options, assistant=assistant)
        seconds[way] = prompts[way] = time.perf_counter() - start
        length[way] = 0
    going = {way: run.advance(Deadline()) for way, run in runs.items()}
    while going:
        way = min(going, key=length.get)  # the first one in order, if there are several
        start = time.perf_counter()
        if next(going[way], OVER) is OVER:
            del going[way]
        seconds[way] += time.perf_counter() - start
        length[way] = sum(len(tokens) for tokens, _ in runs[way].rows())
    made = {}
    for way, run in runs.items():
        start = time.perf_counter()
        out = run.outputs()
        seconds[way] += time.perf_counter() - start
        ran = getattr(run.generation, "runs", np.array([out["lengths"].max(), 0])).tolist()
        run.close()
        tokens = [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)]
        made[way] = (seconds[way], prompts[way], tokens, ran)
    return made


def repeated(prompt: list[int], tokens: list[int]) -> int:
    """How many tokens of an answer stand in its prompt, with the ones around them."""
    there = {tuple(prompt[i : i + ALIKE]) for i in range(len(prompt) - ALIKE + 1)}
    first = (i for i in range(len(tokens) - ALIKE + 1) if tuple(tokens[i : i + ALIKE]) in there)
    return len({at for i in first for at in range(i, i + ALIKE)})


def rows_of(layer, prompts):
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    ids = layer.tokenizer.apply_chat_template(chats, add_generation_prompt=True)
    return [np.array(row, np.int32) for row in ids["input_ids"]]


def ways_of(layer, source: str, args: argparse.Namespace) -> dict[str, tuple]:
    """Options, and the generator of an assistant."""
    plain = layer.options.replace(do_sample=False)
    small = keras_xla.XLAGenerationLayer.from_pretrained(source, quantization="int8")._generator
    looked_up, guessed = GUESSED
    return {
        "plain": (plain, None),
        looked_up: (plain.replace(prompt_lookup_num_tokens=args.guesses), None),
        guessed: (plain.replace(num_assistant_tokens=args.assistant), small),
    }


def measure(layer, ways: dict[str, tuple], rounds: int, said_of: dict, raw: pathlib.Path) -> None:
    """Append a line a call, once all ways have answered the same prompts; what is there is left out."""
    names, lines = list(ways), raw_lines.of_the_same(raw, said_of)
    done = {(line["round"], line["kind"], line["batch"], line["first"]) for line in lines}
    for turn in range(-1, rounds):  # the first compiles, and learns what a run takes
        limit, first = read_bandwidth(), turn % len(names)
        for kind, prompts in KINDS.items():
            each = rows_of(layer, prompts if turn >= 0 else prompts[: max(BATCHES)])
            for batch in BATCHES:
                for i in range(0, len(each) - batch + 1, batch):
                    if (turn, kind, batch, i) in done:
                        continue
                    made, mine = answers(layer, each[i : i + batch], ways, names[first:] + names[:first]), []
                    for way, (seconds, prompt, tokens, runs) in made.items():
                        line = dict(round=turn, kind=kind, batch=batch, first=i, way=way, seconds=seconds, runs=runs)
                        line |= dict(prompt=prompt, tokens=sum(map(len, tokens)), bandwidth=limit, **said_of)
                        rows = zip(each[i : i + batch], tokens, strict=True)
                        line["repeated"] = sum(repeated(row.tolist(), new) for row, new in rows)
                        mine.append(line | dict(same=tokens == made["plain"][2]))
                    if turn >= 0:
                        raw_lines.append(raw, mine)


def report(lines: list[dict]) -> str:
    """The page."""
    first = lines[0]
    many = ", ".join(f"{len(prompts)} of an answer that {kind}" for kind, prompts in KINDS.items())
    made = [
        "# Guesses\n",
        f"`python benchmarks/guesses.py`, {first['date']}, commit {first['commit']}, keras {first['keras']} on "
        f"{first['backend']}. SmolLM2-135M-Instruct, float32, greedy, at most {first['new']} new tokens, "
        f"{max(line['round'] for line in lines) + 1} rounds. Prompts: {many}. A ratio is the median over the rounds of "
        "what all prompts took together. The runs of the prompts themselves are part of it, but for the column "
        "`decoding`. Only full batches run, and a batch waits for its slowest row. A run of the model gives at least "
        "one token. "
        f"A token is repeated if it is one of {ALIKE} in a row that stand in the prompt.",
    ]
    for way, options in GUESSED.items():
        differ = sum(not line["same"] for line in lines if line["way"] == way)
        made += [
            f"\n### Guesses {way}\n",
            f"{options.format(**first)}. Calls whose tokens differ: {differ}.\n",
            f"| the answer | repeated | batch | {MEASURED} |",
            "|---|---|---|---|---|---|---|---|",
            *(row(lines, way, kind, batch) for kind in KINDS for batch in BATCHES),
        ]
        if way == next(iter(GUESSED)):
            made += [
                "\nThe same single prompts, by how much of their answers is repeated:\n",
                f"| repeated | prompts | {MEASURED} |",
                "|---|---|---|---|---|---|---|",
                *by_share(lines, way),
            ]
    return "\n".join(made) + "\n"


def by_share(lines: list[dict], way: str) -> list[str]:
    """The rows of a table of single prompts, from answers that are repetitions to those that are not."""
    single = [line for line in lines if line["batch"] == 1]
    share = {(line["kind"], line["first"]): line["repeated"] / line["tokens"] for line in single}
    rows, most = [], 2.0
    for least in SHARES:
        named = [prompt for prompt, value in share.items() if least <= value < most]
        of = [line for line in single if (line["kind"], line["first"]) in named]
        label = (
            f"{least:.0%} or more" if most > 1 else f"{least:.0%} to {most:.0%}" if least else f"less than {most:.0%}"
        )
        rows.append(f"| {label} | {len(named)} | {measured(of, way)} |")
        most = least
    return rows


def row(lines: list[dict], way: str, kind: str, batch: int) -> str:
    """A row of the table of a way."""
    of = [line for line in lines if (line["kind"], line["batch"]) == (kind, batch)]
    mine = [line for line in of if line["way"] == way]
    again = sum(line["repeated"] for line in mine) / sum(line["tokens"] for line in mine)
    return f"| {kind} | {again:.0%} | {batch} | {measured(of, way)} |"


def total_of(of: list[dict], way: str) -> tuple[float, list[float]]:
    """Runs of the model per token, and how many times as fast all calls together were in each round."""
    runs = total(of, way, "runs") / total(of, "plain", "runs")  # a plain run is one token of each row
    return runs, [total(each, "plain", "seconds") / total(each, way, "seconds") for each in rounds_of(of)]


def decoding_of(of: list[dict], way: str) -> list[float]:
    """The same without the runs of the prompts."""

    def decoding(each, way):
        return total(each, way, "seconds") - total(each, way, "prompt")

    return [decoding(each, "plain") / decoding(each, way) for each in rounds_of(of)]


def total(of: list[dict], way: str, field: str) -> float:
    return sum(np.sum(line[field]) for line in of if line["way"] == way)


def rounds_of(of: list[dict]) -> list[list[dict]]:
    rounds = sorted({line["round"] for line in of})
    return [[line for line in of if line["round"] == turn] for turn in rounds]


def measured(of: list[dict], way: str) -> str:
    """The same as cells of a table, and times as fast for single calls."""

    def middle(way, call):
        return statistics.median(
            line["seconds"] for line in of if (line["kind"], line["first"], line["way"]) == (*call, way)
        )

    (runs, ratios), decoded = total_of(of, way), decoding_of(of, way)
    calls = sorted({(line["kind"], line["first"]) for line in of})
    single = [middle("plain", call) / middle(way, call) for call in calls]
    cells = f"{runs:.2f} | {statistics.median(ratios):.2f}x | {statistics.median(decoded):.2f}x | {min(ratios):.2f}x"
    return f"{cells} | {min(single):.2f}x - {max(single):.2f}x"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=128, help="tokens of an answer at most")
    parser.add_argument("--guesses", type=int, default=10, help="prompt_lookup_num_tokens")
    parser.add_argument("--assistant", type=int, default=5, help="num_assistant_tokens")
    parser.add_argument("--raw", type=pathlib.Path, default="guesses.jsonl")
    parser.add_argument("--report", action="store_true", help="measure nothing: make the page of the raw lines")
    args = parser.parse_args()
    if not args.report:
        layer = keras_xla.XLAGenerationLayer.from_pretrained(smollm2.fetch(), max_new_tokens=args.new)
        said_of = facts() | dict(new=args.new, guesses=args.guesses, assistant=args.assistant)
        measure(layer, ways_of(layer, smollm2.fetch(), args), args.rounds, said_of, args.raw)
    print(report(raw_lines.read(args.raw)), end="")


if __name__ == "__main__":
    main()
