"""Answers under 20 JSON schemas and 10 regular expressions: are all of them valid, and what does a token cost?

    python benchmarks/structured.py --checkpoints DIR

DIR holds `smollm2-135m-instruct` and `stories15m`. Every constraint answers seven prompts at once, greedy. Every
schema has an end: a text has a `maxLength`, a number a `multipleOf`. An answer that `max_new_tokens` cuts off is
counted apart; the others are checked with `jsonschema` and `re`. The same prompts run without a constraint for as many
tokens, in turns. A line a constraint goes to the raw file, and the same command goes on where it was cut off.
"""

import argparse
import decimal
import json
import pathlib
import re
import statistics
import time
import warnings

import jsonschema
import raw_lines
from bandwidth import read_bandwidth
from facts import measured, told

import keras_xla

HERE = pathlib.Path(__file__).resolve().parent
TEXT, NAME = {"type": "string", "maxLength": 20}, {"type": "string", "minLength": 1, "maxLength": 12}


def thing(**properties) -> dict:
    """The schema of an object, all of whose properties are required."""
    kinds = {name: kind if isinstance(kind, dict) else {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": kinds, "required": list(kinds), "additionalProperties": False}


def many(items: dict, least: int = 1, most: int = 3) -> dict:
    """The schema of an array."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS = [
    {"type": "boolean"},
    {"type": "integer", "minimum": 1, "maximum": 999},
    {"type": "null"},
    TEXT,
    {"enum": ["red", "green", "blue"]},
    {"const": "yes"},
    many({"type": "integer", "minimum": 0, "maximum": 99}, 3, 3),
    many(NAME),
    many({"type": "boolean"}, 2, 4),
    thing(name=NAME, age={"type": "integer", "minimum": 0, "maximum": 120}),
    thing(title=TEXT, done="boolean"),
    thing(colour={"enum": ["red", "green"]}, size={"enum": ["S", "M", "L"]}),
    thing(person=thing(first=NAME, last=NAME), here="boolean"),
    thing(tags=many(NAME, 1, 2), count={"type": "integer", "minimum": 0, "maximum": 9}),
    thing(value={"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]}),
    thing(date={"type": "string", "pattern": "^[12][0-9]{3}-[01][0-9]-[0-3][0-9]$"}),
    thing(price={"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.01}),
    many(thing(x={"type": "integer", "minimum": 0, "maximum": 9}), 2, 2),
    thing(a=thing(b=thing(c={"type": "boolean"}))),
    thing(kind={"const": "note"}, text=TEXT),
]
PATTERNS = [
    r"[a-z]{3,8}",
    r"(yes|no|perhaps)",
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"[A-Z][a-z]{2,9} [A-Z][a-z]{2,9}",
    r"\+?[0-9]{6,10}",
    r"#[0-9a-f]{6}",
    r"([a-z]{2,5}, ){2}[a-z]{2,5}",
    r"[01]{8}",
    r"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day",
    r"[a-z]{1,8}@[a-z]{1,8}\.(com|org)",
]
RULES = [dict(json_schema=schema) for schema in SCHEMAS] + [dict(regex=pattern) for pattern in PATTERNS]
PROMPTS = [
    f"Tell me about {name}." for name in ("a dog", "Anna", "the sea", "a red car", "Rome", "a party", "the moon")
]


def is_valid(answer: str, asked: dict) -> bool:
    """Whether the answer follows what was asked for."""
    if "regex" in asked:
        return re.fullmatch(asked["regex"], answer) is not None
    try:
        exact = json.loads(json.dumps(asked["json_schema"]), parse_float=decimal.Decimal)  # 20.20 / 0.01 has no rest
        jsonschema.validate(json.loads(answer, parse_float=decimal.Decimal), exact)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def measure(checkpoint: pathlib.Path, chat: bool, args: argparse.Namespace) -> None:
    """Append a line for each round and constraint to the raw file; those that are there are left out."""
    known = measured("keras", "tensorflow", "llguidance") | dict(new=args.new)
    done = {(line["model"], line["round"], line["rule"]) for line in raw_lines.of_the_same(args.raw, known)}
    layer = keras_xla.XLAGenerationLayer.from_pretrained(checkpoint, max_new_tokens=args.new, do_sample=False)
    prompts = [[{"role": "user", "content": p}] for p in PROMPTS] if chat else PROMPTS
    layer.generate(prompts, max_new_tokens=2)  # compiles
    layer.generate(prompts, max_new_tokens=2, regex="[a-z]+")
    for turn in range(args.rounds):
        limit = read_bandwidth()
        for number, asked in enumerate(RULES):
            if (checkpoint.name, turn, number) in done:
                continue
            start = time.perf_counter()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                answers = layer.generate(prompts, **asked)
            seconds = time.perf_counter() - start
            ended = [str(w.message).split("ended")[0] for w in said if "ended before" in str(w.message)]
            over = {int(row) for rows in ended for row in re.findall(r"\d+", rows)}
            good = [is_valid(answer, asked) for i, answer in enumerate(answers) if i not in over]
            longest = max(len(layer.tokenizer(answer)["input_ids"]) for answer in answers) + 1
            start = time.perf_counter()
            layer.generate(prompts, max_new_tokens=longest, eos_token_id=None)
            line = dict(model=checkpoint.name, round=turn, rule=number, seconds=seconds, tokens=longest)
            line |= dict(plain_seconds=time.perf_counter() - start, bandwidth=limit)
            line |= dict(valid=sum(good), wrong=len(good) - sum(good), cut_off=len(over))
            raw_lines.append(args.raw, [line | known])


def report(lines: list[dict]) -> str:
    """The page of raw lines. How many answers are valid is that of the first round: all rounds answer the same."""
    rounds = 1 + max(line["round"] for line in lines)
    made = [
        "# Answers under a schema or a regular expression\n",
        f"`python benchmarks/structured.py`, {told(lines[0])}. {len(SCHEMAS)} schemas and {len(PATTERNS)} expressions, "
        f"{len(PROMPTS)} prompts each in one batch, greedy, at most {lines[0]['new']} new tokens; {rounds} rounds, "
        "whose answers count once. Each has an end: a text has a `maxLength`, a number a `multipleOf`. The cost is "
        "that of a call's seconds, divided by those of a call without a constraint that makes as many tokens: the "
        "median over the constraints of a round, of that the median over the rounds, and in brackets the lowest and "
        "the highest round. A constraint of short answers mostly pays for its own beginning.\n",
        "| model | valid | cut off by max_new_tokens | wrong | times plain decoding |\n|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(line["model"] for line in lines):
        by_round = [
            [line for line in lines if (line["model"], line["round"]) == (model, turn)] for turn in range(rounds)
        ]
        counts = [[sum(line[kind] for line in of) for kind in ("valid", "cut_off", "wrong")] for of in by_round]
        if any(each != counts[0] for each in counts):
            raise SystemExit(f"The rounds of {model} count {counts} answers as valid, cut off and wrong, not the same.")
        costs = [statistics.median(line["seconds"] / line["plain_seconds"] for line in of) for of in by_round]
        cost = f"{statistics.median(costs):.2f} ({min(costs):.2f} - {max(costs):.2f})"
        made.append(f"| {model} | {' | '.join(map(str, counts[0]))} | {cost} |")
    return "\n".join(made) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--new", type=int, default=160, help="tokens of an answer at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", type=pathlib.Path, default=HERE / "results" / "structured.jsonl")
    args = parser.parse_args()
    measure(args.checkpoints / "smollm2-135m-instruct", True, args)
    measure(args.checkpoints / "stories15m", False, args)
    raw_lines.publish(args.raw, report(raw_lines.read(args.raw)))


if __name__ == "__main__":
    main()
