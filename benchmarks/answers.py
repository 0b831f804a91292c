"""SmolLM2-135M on a chat's work: compilations, the cost of a step in each cache, streams, and the first token.

    python benchmarks/answers.py --before OLDER_CHECKOUT

Batch 1, float32. What is compared runs in turns; ratios are medians over the rounds. The 20 mixed calls run in
processes of their own: with what compiles on the way, after `warmup()`, and in an older checkout of this repository.
The raw lines of a part are replaced when it is measured, and the page is made of all of them.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import raw_lines
from answers_calls import LENGTHS, NEW
from facts import commit, measured, told
from medians import middle

HERE = pathlib.Path(__file__).resolve().parent
RAW = HERE / "results" / "answers.jsonl"
CACHES = (128, 256, 512, 1024)
MADE = 90  # new tokens, where they are made in several ways
LONG, KEPT = 700, 650  # tokens of a prompt, and how many of them an earlier call has run
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
    took = seconds(next, stream)
    stream.close()
    return took


def in_turns(turn, **ways):
    """What each function returns; every other time they run in the other order."""
    return {name: ways[name]() for name in list(ways)[:: -1 if turn % 2 else 1]}


def mixed_calls(model, before, rounds):
    """The 20 calls, in a process for each way to make them."""
    ways = {"now": (HERE.parent, []), "warm": (HERE.parent, ["warm"])}
    ways |= {"before": (before.resolve(), [])} if before else {}
    for turn in range(rounds):
        for way, (root, more) in ways.items():
            command = [sys.executable, HERE / "answers_calls.py", model, *more]
            env = {**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"}
            done = subprocess.run(command, env=env, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
            made = json.loads(done.stdout.splitlines()[-1])
            yield dict(what="calls", way=way, round=turn, version=commit(root), **made)


def steps(layer, rng, turn):
    """Milliseconds a token over each size of the cache that the mixed calls need."""
    for cache in CACHES:
        ids = rng.integers(100, 40_000, (1, cache - 70))
        took = [seconds(layer.generate, ids, max_new_tokens=new) for new in (66, 2)]
        yield dict(what="step", round=turn, cache=cache, ms=(took[0] - took[1]) / 64 * 1e3)


def streaming(layer, rng, turn):
    """Seconds of a stream of 90 tokens, and of making them at once."""
    ids, options = rng.integers(100, 40_000, (1, 30)), dict(max_new_tokens=MADE)
    ways = dict(
        whole=lambda: seconds(layer.generate, ids, **options),
        streamed=lambda: seconds(list, layer.stream(ids, **options)),
    )
    yield dict(what="stream", round=turn, **in_turns(turn, **ways))


def loop(layer, rng, turn):
    """Seconds of 90 tokens in one call of the executable, in a call for each, and as `generate` calls it."""
    from keras_xla.engine.runs.deadline import Deadline

    row, options = rng.integers(100, 40_000, 30).astype(np.int32), layer.options.replace(max_new_tokens=MADE)

    def advance(count):
        run = layer._generator.start([row], options)
        start = time.perf_counter()
        calls = sum(1 for _ in run.advance(Deadline(), count=count))
        run.outputs()
        took = time.perf_counter() - start
        run.close()
        return took, calls

    ways = dict(one=lambda: advance(MADE), each=lambda: advance(1), usual=lambda: advance(None))
    yield dict(what="loop", round=turn, **in_turns(turn, **ways))


def first_tokens(layer, rng, turn):
    """Seconds to the first token of a long prompt, with most of it kept from an earlier call and without."""
    long, other = rng.integers(100, 40_000, (1, LONG)), rng.integers(100, 40_000, (1, LONG))
    other[:, :KEPT] = long[:, :KEPT]
    layer.generate(other, max_new_tokens=2, reuse_prompt=True)
    ways = dict(
        whole=lambda: first_token(layer.stream(long)),
        kept=lambda: first_token(layer.stream(long, reuse_prompt=True)),
    )
    yield dict(what="first", round=turn, **in_turns(turn, **ways))


def chat(layer, rng, turn):
    """Seconds to the first token of each turn, with what the cache holds and without."""
    conversation = layer.chat(max_new_tokens=100, eos_token_id=layer.tokenizer.eos_token_id)
    for number, said in enumerate(TURNS):
        asked = [*conversation.messages, {"role": "user", "content": said}]
        tokens = len(layer.tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"])

        def kept(said=said):
            stream = conversation.stream(said)
            took = seconds(next, stream)
            for _ in stream:
                pass
            return took

        ways = dict(whole=lambda asked=asked: first_token(layer.stream(asked)), kept=kept)
        yield dict(what="chat", round=turn, turn=number, tokens=tokens, **in_turns(turn, **ways))


def measure(args):
    """The raw lines, of one part after the other."""
    sys.path.append(str(HERE.parent / "examples"))
    import smollm2

    model = str(smollm2.fetch())
    if "calls" in args.only:
        yield from mixed_calls(model, args.before, args.processes)
    if not (works := [work for name, work in WORKS.items() if name in args.only]):
        return

    import keras_xla

    layer, rng = keras_xla.XLAGenerationLayer.from_pretrained(model, eos_token_id=None), np.random.default_rng(0)
    for turn in range(-1, args.rounds):  # the first compiles, and learns what a run takes
        for work in works:
            yield from (line for line in work(layer, rng, turn) if turn >= 0)


WORKS = dict(step=steps, stream=streaming, loop=loop, first=first_tokens, chat=chat)


def report(lines):
    """The page of raw lines."""
    of = {}
    for line in lines:
        of.setdefault(line["what"], []).append(line)
    rounds = 1 + max(line["round"] for line in lines)
    text = [
        "# SmolLM2-135M, a chat's work",
        "",
        f"`python benchmarks/answers.py --before FOLDER`, {'; '.join(dict.fromkeys(map(told, lines)))}. Batch 1, "
        f"float32, {rounds} rounds in which what is compared takes turns; medians, in brackets the lowest and the "
        "highest. Prompts are of random tokens, but for the chat.",
    ]
    sections = dict(calls=said_of_calls, step=said_of_steps, stream=said_of_streams, loop=said_of_the_loop)
    sections |= dict(first=said_of_first_tokens, chat=said_of_the_chat)
    for what, section in sections.items():
        text += ["", *section(of[what])] if what in of else []
    return "\n".join(text) + "\n"


def said_of_calls(lines):
    text = [
        f"{len(LENGTHS)} prompts of {LENGTHS[0]} to {LENGTHS[-1]} tokens, {min(NEW)} to {max(NEW)} new tokens, greedy "
        f"and sampled, streamed and not. Every row is of processes of its own, {1 + lines[-1]['round']} each. What has "
        "no streams makes all whole.",
        "",
        "| | compilations | the calls, s | the same calls once more, s | warm-up before, s |",
        "|---|---|---|---|---|",
    ]
    for way in dict.fromkeys(line["way"] for line in lines):
        mine = [line for line in lines if line["way"] == way]
        made = mine[0]
        label = {"now": "keras_xla", "warm": "keras_xla after `warmup()`"}.get(way, f"keras_xla at {made['version']}")
        compiled = " or ".join(map(str, sorted({line["compiled"] for line in mine})))
        took = [middle((line["seconds"] for line in mine), ".1f")]
        took += [middle((line["again"]["seconds"] for line in mine), ".1f")]
        warmed = "" if way != "warm" else middle((line["warmup_seconds"] for line in mine), ".1f")
        warmed += f", {made['warmup_compiled']} compilations" if warmed else ""
        text.append(f"| {label} | {compiled} | {' | '.join(took)} | {warmed} |")
    again = sum(line["again"]["compiled"] for line in lines)
    shapes = next(line["shapes"] for line in lines if line["way"] == "now")
    return [*text, "", f"Once more, they compile {again or 'nothing'}. keras_xla compiles: {'; '.join(shapes)}."]


def said_of_steps(lines):
    text = ["| cache | ms a token |", "|---|---|"]
    for cache in CACHES:
        text.append(f"| {cache} | {middle((line['ms'] for line in lines if line['cache'] == cache), '.1f')} |")
    return text


def said_of_streams(lines):
    slower = middle((line["streamed"] / line["whole"] for line in lines), ".3f")
    return [f"A stream of {MADE} tokens takes {slower} times as long as making them at once."]


def said_of_the_loop(lines):
    a_call = [(line["each"][0] - line["one"][0]) / (line["each"][1] - line["one"][1]) for line in lines]
    usual = [cost * line["usual"][1] / line["usual"][0] for cost, line in zip(a_call, lines, strict=True)]
    many = statistics.median(line["usual"][1] for line in lines)
    return [
        f"A call of the executable costs {middle(x * 1e3 for x in a_call)} ms beside its tokens, Python's loop around "
        f"it included: so much longer do {MADE} tokens take in {MADE} calls than in one. `generate` makes them in "
        f"{many:.0f} calls, whose cost is {middle(x * 100 for x in usual)} % of the time."
    ]


def said_of_first_tokens(lines):
    return [
        f"| first token, s | whole | with {KEPT} of its tokens kept | times as fast |",
        "|---|---|---|---|",
        f"| prompt of {LONG} tokens | {whole_and_kept(lines)} |",
        "",
        f"An earlier call with `reuse_prompt=True` has run the {KEPT} tokens.",
    ]


def said_of_the_chat(lines):
    text = [
        "| turn of a chat | tokens so far | first token, s | with what the cache holds, s | times as fast |",
        "|---|---|---|---|---|",
    ]
    for number in range(len(TURNS)):
        mine = [line for line in lines if line["turn"] == number]
        text.append(f"| {number + 1} | {mine[0]['tokens']} | {whole_and_kept(mine)} |")
    return text


def whole_and_kept(lines):
    """The cells of what is computed whole, what goes on from the cache, and how many times as fast that is."""
    ratio = middle(line["whole"] / line["kept"] for line in lines)
    return " | ".join([*(middle(line[way] for line in lines) for way in ("whole", "kept")), ratio])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, for the mixed calls")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2, help="for each way to make the mixed calls")
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the page stands beside them")
    parts = ["calls", *WORKS]
    parser.add_argument("--only", nargs="*", choices=parts, default=parts, help="parts to measure; none: the page only")
    args = parser.parse_args()
    lines = raw_lines.read(args.raw)
    lines = [line for line in lines if line["what"] not in args.only]
    where = measured("keras", os.environ.setdefault("KERAS_BACKEND", "tensorflow"))
    for line in measure(args):
        lines.append({**line, **where})
        raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
