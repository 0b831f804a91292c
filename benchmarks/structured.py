"""Answers under 20 JSON schemas and 10 regular expressions: are all of them valid, and what does a token cost?

    cd benchmarks/results; python ../structured.py --checkpoints DIR > structured.md

DIR holds `smollm2-135m-instruct` and `stories15m`. Every constraint answers seven prompts at once, greedy. Every
schema has an end: a text has a `maxLength`, a number a `multipleOf`. An answer that `max_new_tokens` cuts off is
counted apart; the others are checked with `jsonschema` and `re`. The same prompts run without a constraint for as many
tokens, in turns.
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
from facts import said

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


def measure(checkpoint: pathlib.Path, new: int, chat: bool) -> str:
    """A row of the table."""
    layer = keras_xla.XLAGenerationLayer.from_pretrained(checkpoint, max_new_tokens=new, do_sample=False)
    prompts = [[{"role": "user", "content": p}] for p in PROMPTS] if chat else PROMPTS
    layer.generate(prompts, max_new_tokens=2)
    layer.generate(prompts, max_new_tokens=2, regex="[a-z]+")
    valid = cut_off = wrong = 0
    costs = []
    for asked in [dict(json_schema=schema) for schema in SCHEMAS] + [dict(regex=pattern) for pattern in PATTERNS]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            start = time.perf_counter()
            answers = layer.generate(prompts, **asked)
            seconds = time.perf_counter() - start
        told = [re.findall(r"\d+", str(w.message).split("ended")[0]) for w in said if "ended before" in str(w.message)]
        over = {int(number) for numbers in told for number in numbers}
        cut_off += len(over)
        good = [is_valid(answer, asked) for i, answer in enumerate(answers) if i not in over]
        valid, wrong = valid + sum(good), wrong + len(good) - sum(good)
        longest = max(len(layer.tokenizer(answer)["input_ids"]) for answer in answers) + 1
        start = time.perf_counter()
        layer.generate(prompts, max_new_tokens=longest, eos_token_id=None)
        costs.append(seconds / (time.perf_counter() - start))
    return f"| {checkpoint.name} | {valid} | {cut_off} | {wrong} | {statistics.median(costs):.2f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer at most")
    args = parser.parse_args()
    rows = [
        measure(args.checkpoints / "smollm2-135m-instruct", args.new, True),
        measure(args.checkpoints / "stories15m", args.new, False),
    ]
    print("# Answers under a schema or a regular expression\n")
    print(
        f"`python benchmarks/structured.py`, {said()}. {len(SCHEMAS)} schemas and {len(PATTERNS)} expressions, "
        f"{len(PROMPTS)} prompts each in one batch, greedy, at most {args.new} new tokens. Each has an "
        "end: a text has a `maxLength`, a number a `multipleOf`. The cost is the median over "
        "the constraints of a call's seconds, divided by those of a call without a constraint that makes as many "
        "tokens; a constraint of short answers mostly pays for its own beginning.\n"
    )
    print("| model | valid | cut off by max_new_tokens | wrong | times plain decoding |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
