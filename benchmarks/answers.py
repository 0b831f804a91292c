"""SmolLM2-135M on a chat's work: compilations, the cost of a step in each cache, streams, and the first token.

    python benchmarks/answers.py > benchmarks/results/answers.md

One process, batch 1, float32. What is compared runs in turns; ratios are medians over the rounds.
"""

import argparse
import datetime
import pathlib
import statistics
import subprocess
import sys
import time

import keras
import numpy as np

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "examples"))

import smollm2  # noqa: E402  (a script in another folder)

import keras_xla  # noqa: E402

LENGTHS = np.linspace(5, 700, 20).astype(int)
NEW = (5, 20, 60, 150, 300)
TURNS = [
    "Tell me about the history of the city of Rome in five sentences.",
    "Who was its first emperor? Answer in three sentences.",
    "What is it known for today? Answer in three sentences.",
    "Sum it up in one sentence.",
]


def seconds(function, *args, **kwargs):
    start = time.perf_counter()
    function(*args, **kwargs)
    return time.perf_counter() - start


def first_token(stream):
    start = time.perf_counter()
    next(stream)
    took = time.perf_counter() - start
    stream.close()
    return took


def mixed_calls(layer, rng):
    """20 prompts of 20 lengths, greedy and sampled, streamed and whole."""
    before, compiled = layer.trace_count, time.perf_counter()
    for i, length in enumerate(rng.permutation(LENGTHS)):
        ids = rng.integers(100, 40_000, (1, length))
        options = dict(max_new_tokens=NEW[i % len(NEW)], **(dict(do_sample=True, seed=i) if i % 2 else {}))
        if i % 3:
            layer.generate(ids, **options)
        else:
            list(layer.stream(ids, **options))
    return layer.trace_count - before, time.perf_counter() - compiled


def steps(layer, rng, rounds):
    """Milliseconds a token over each size of the cache that the mixed calls need."""
    made = {}
    for cache in (128, 256, 512, 1024):
        ids = rng.integers(100, 40_000, (1, cache - 70))
        layer.generate(ids, max_new_tokens=66)
        took = [
            (seconds(layer.generate, ids, max_new_tokens=66) - seconds(layer.generate, ids, max_new_tokens=2)) / 64
            for _ in range(rounds)
        ]
        made[cache] = statistics.median(took) * 1e3
    return made


def streaming(layer, rng, rounds):
    """How many times as long a stream of 128 tokens takes as making them at once."""
    ids, options = rng.integers(100, 40_000, (1, 30)), dict(max_new_tokens=90)
    ratios = []
    for turn in range(rounds):
        ways = [lambda: seconds(layer.generate, ids, **options), lambda: seconds(list, layer.stream(ids, **options))]
        took = {way: ways[way]() for way in ((0, 1) if turn % 2 else (1, 0))}
        ratios.append(took[1] / took[0])
    return statistics.median(ratios)


def chat(layer):
    """Seconds to the first token of each turn, with what the cache holds and without."""
    conversation, rows = layer.chat(max_new_tokens=100), []
    for turn in TURNS:
        asked = [*conversation.messages, {"role": "user", "content": turn}]
        tokens = len(layer.tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"])
        without = first_token(layer.stream(asked))
        stream = conversation.stream(turn)
        start = time.perf_counter()
        next(stream)
        reused = time.perf_counter() - start
        for _ in stream:
            pass
        rows.append((tokens, without, reused))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    layer = keras_xla.XLAGenerationLayer.from_pretrained(smollm2.fetch(), eos_token_id=None)
    compiled, _ = mixed_calls(layer, rng)
    events = keras_xla.compile_log("generate")
    made = steps(layer, rng, args.rounds)
    slower = streaming(layer, rng, args.rounds)
    long = rng.integers(100, 40_000, (1, 700))
    first = statistics.median(first_token(layer.stream(long)) for _ in range(args.rounds))
    layer.options = layer.options.replace(eos_token_id=layer.tokenizer.eos_token_id)
    chat(layer)  # compiles what it needs
    turns = chat(layer)
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    print("# SmolLM2-135M, a chat's work\n")
    print(
        f"`python benchmarks/answers.py`, {datetime.date.today()}, commit {commit.strip()}, "
        f"keras {keras.__version__} on {keras.backend.backend()}, batch 1, float32, {args.rounds} rounds, medians.\n"
    )
    print(
        f"20 prompts of 5 to 700 tokens, 5 to 300 new tokens, greedy and sampled, streamed and not: {compiled} "
        f"compilations, {sum(event.seconds for event in events):.1f} s in all.\n"
    )
    print("| cache | ms a token |\n|---|---|")
    print("\n".join(f"| {cache} | {ms:.1f} |" for cache, ms in made.items()))
    print(f"\nA stream takes {slower:.3f} times as long as making the same tokens at once.\n")
    print(f"The first token of a prompt of 700 tokens comes after {first:.2f} s.\n")
    print("| turn of a chat | tokens of the conversation | first token, s | with what the cache holds, s |")
    print("|---|---|---|---|")
    print("\n".join(f"| {i + 1} | {n} | {a:.2f} | {b:.2f} |" for i, (n, a, b) in enumerate(turns)))


if __name__ == "__main__":
    main()
