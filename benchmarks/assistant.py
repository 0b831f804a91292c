"""What an assistant can gain: a model that takes four times as long, and has SmolLM2-135M or its int8 as assistant.

    python benchmarks/assistant.py

The large model is SmolLM2-135M with three times as many layers behind its own, whose last products are zero. So it
takes the time of 120 layers, and says what SmolLM2 says: every guess of SmolLM2 itself is right, and most of those of
its int8 are. Of real pairs, a small model guesses right less often. Otherwise as `guesses.py`.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys

import keras
import raw_lines
from bandwidth import read_bandwidth
from facts import measured, told
from guesses import KINDS, answers, rows_of, total_of
from guesses import smollm2 as checkpoint

import keras_xla
from keras_xla.models.build import build
from keras_xla.models.parameters import parameters

HERE = pathlib.Path(__file__).resolve().parent
KIND, BATCHES, TIMES = "does not repeat", (1, 4), 4
GUESSED = {
    "every guess right": "SmolLM2-135M in float32",
    "most guesses right": "SmolLM2-135M in int8",
}


def with_more_layers(model, times: int):
    """A model that computes the same, in `times` as many layers."""
    spec = model.spec
    attention = dataclasses.replace(spec.attention, windows=times * spec.attention.windows)
    large = build(dataclasses.replace(spec, layers=times * spec.layers, attention=attention), model.dtype_policy)
    targets, sources = parameters(large), parameters(model)
    for name, target in targets.items():
        block = name.split(".")[1] if name.startswith("blocks.") else "0"
        if int(block) < spec.layers:
            source = sources[name]
            values = [keras.ops.convert_to_numpy(v) for v in getattr(source, "variables", [source])]
        else:
            values = [0 * keras.ops.convert_to_numpy(v) for v in getattr(target, "variables", [target])]
        for variable, value in zip(getattr(target, "variables", [target]), values, strict=True):
            variable.assign(value)
    return large


def measure(args: argparse.Namespace) -> None:
    """Append a line a call, once all ways have answered the same prompts; what is there is left out."""
    known = measured("keras", "tensorflow") | dict(new=args.new, guesses=args.guesses)
    done = {(line["round"], line["batch"], line["first"]) for line in raw_lines.of_the_same(args.raw, known)}
    path = checkpoint.fetch()
    small = keras_xla.XLAGenerationLayer.from_pretrained(path, max_new_tokens=args.new)
    int8 = keras_xla.XLAGenerationLayer.from_pretrained(path, quantization="int8")
    large = keras_xla.XLAGenerationLayer(
        with_more_layers(small.model, TIMES), small.tokenizer, max_new_tokens=args.new, do_sample=False
    )
    plain = large.options
    guessed = plain.replace(num_assistant_tokens=args.guesses)
    helpers = (small._generator, int8._generator)
    ways = {"plain": (plain, None)} | {way: (guessed, each) for way, each in zip(GUESSED, helpers, strict=True)}
    names = list(ways)
    for turn in range(-1, args.rounds):  # the first compiles, and learns what a run takes
        limit, first = read_bandwidth(), turn % len(names)
        rows = rows_of(small, KINDS[KIND][: args.prompts if turn >= 0 else max(BATCHES)])
        for batch in BATCHES:
            for i in range(0, len(rows) - batch + 1, batch):
                if (turn, batch, i) in done:
                    continue
                made, lines = answers(large, rows[i : i + batch], ways, names[first:] + names[:first]), []
                print(f"round {turn}, batch {batch}, prompt {i}", {way: made[way][0] for way in names}, file=sys.stderr)
                for way, (seconds, prompt, tokens, runs) in made.items():
                    line = dict(round=turn, batch=batch, first=i, way=way, seconds=seconds, runs=runs, bandwidth=limit)
                    line |= dict(
                        prompt=prompt, tokens=sum(map(len, tokens)), same=tokens == made["plain"][2], kind=KIND
                    )
                    lines.append(line | known)
                if turn >= 0:
                    raw_lines.append(args.raw, lines)


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    first, rounds = lines[0], 1 + max(line["round"] for line in lines)
    prompts = len({line["first"] for line in lines if line["batch"] == 1})
    differ = sum(not line["same"] for line in lines)
    made = [
        "# An assistant\n",
        f"`python benchmarks/assistant.py`, {told(first)}. The model has {TIMES} times the layers of SmolLM2-135M; the "
        "added ones add zero to what SmolLM2 computes. So it takes the time of a model of that size, and says what "
        f"SmolLM2 says. float32, greedy, {prompts} prompts of an answer that does not repeat, at most {first['new']} "
        f"new tokens, `num_assistant_tokens={first['guesses']}`, {rounds} rounds. Calls whose tokens differ: {differ}. "
        "A ratio is the median over the rounds of what all prompts took together.\n",
        "| assistant | batch | runs per token | times as fast | lowest round |",
        "|---|---|---|---|---|",
    ]
    for way, assistant in GUESSED.items():
        for batch in BATCHES:
            of = [line for line in lines if line["batch"] == batch]
            runs, ratios = total_of(of, way)
            cells = f"{runs:.2f} | {statistics.median(ratios):.2f}x | {min(ratios):.2f}x"
            made.append(f"| {assistant}: {way} | {batch} | {cells} |")
    return "\n".join(made) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer at most")
    parser.add_argument("--guesses", type=int, default=5, help="num_assistant_tokens")
    parser.add_argument("--raw", type=pathlib.Path, default=HERE / "results" / "assistant.jsonl")
    args = parser.parse_args()
    measure(args)
    raw_lines.publish(args.raw, report(raw_lines.read(args.raw)))


if __name__ == "__main__":
    main()
