"""What drawing a token costs beside taking the likeliest: SmolLM2-135M, and, with `--before`, an older checkout, too.

    python benchmarks/sampling.py [--before OLDER_CHECKOUT]

Every contender runs in a process of its own; in a round all take turns, way by way. The prompts are chats, since what
a filter keeps depends on the text. Milliseconds a step are the difference of a 64-token and a 2-token run, divided by
62. Lines are appended as they are measured: a run that is cut off goes on where it was.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import raw_lines
from contender import ROOT, Contender
from decode import PAUSE, smollm2_file
from facts import commit, measured, told
from questions import QUESTIONS

RAW = pathlib.Path(__file__).parent / "results" / "sampling.jsonl"
SHORT, NEW = 2, 64
BATCHES = 1, 8, 32
WAYS = {
    "the likeliest": {},
    "`do_sample=True` (top_k=50)": dict(do_sample=True),
    "`top_k=50, top_p=0.95`": dict(do_sample=True, top_p=0.95),
    "`top_k=0, top_p=0.9, temperature=0.7`": dict(do_sample=True, top_k=0, top_p=0.9, temperature=0.7),
    "`top_k=0, top_p=0.95`": dict(do_sample=True, top_k=0, top_p=0.95),
    "`top_k=0, min_p=0.05`": dict(do_sample=True, top_k=0, min_p=0.05),
    "`top_k=0`": dict(do_sample=True, top_k=0),
}
CHATS = QUESTIONS[:8]


def work() -> None:
    """Answer jobs, a line of JSON each."""
    import keras_xla

    layer = keras_xla.XLAGenerationLayer.from_pretrained(smollm2_file())
    chats = [[{"role": "user", "content": question}] for question in CHATS]
    rows = layer.tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        prompts = [rows[i % len(rows)] for i in range(job.pop("batch"))]
        seconds = []
        for new in (SHORT, NEW):
            start = time.perf_counter()
            layer.generate(prompts, max_new_tokens=new, eos_token_id=None, **job)
            seconds.append(time.perf_counter() - start)
        print(json.dumps(dict(ms=(seconds[1] - seconds[0]) / (NEW - SHORT) * 1e3)), flush=True)


def measure(rounds: int, before: pathlib.Path | None, raw: pathlib.Path) -> None:
    """Append a line for each contender, batch, way and round."""
    said = measured("keras", "tensorflow", "jax") | dict(before=commit(before) if before else None)
    lines = raw_lines.of_the_same(raw, said)
    done = {(line["round"], line["batch"]) for line in lines}
    contenders = {}
    for backend in ("tensorflow", "jax"):
        for when, root in (("now", ROOT), ("before", before)):
            if root:
                given = (sys.executable, "sampling.py", "--work")
                contenders[backend, when] = Contender(
                    f"{backend}, {when}", *given, root=root.resolve(), backend=backend
                )
    for batch in BATCHES:  # compiles, and what is left of it in a round counts for none
        for contender in contenders.values():
            for options in list(WAYS.values())[:2]:
                contender.ask(batch=batch, **options)
    for turn in range(rounds):
        for batch in BATCHES:
            if (turn, batch) in done:
                continue
            mine = []
            for way, options in WAYS.items():
                seed = dict(seed=turn) if options else {}
                order = list(contenders.items())
                for (backend, when), contender in order if turn % 2 else order[::-1]:
                    time.sleep(PAUSE)
                    made = contender.ask(batch=batch, **options, **seed)
                    mine.append(dict(round=turn, batch=batch, way=way, backend=backend, when=when, **made, **said))
            raw_lines.append(raw, mine)
    for contender in contenders.values():
        contender.close()


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    rounds, older = 1 + max(line["round"] for line in lines), lines[0].get("before")
    of = {(x["batch"], x["way"], x["backend"], x["when"], x["round"]): x["ms"] for x in lines}

    def ratio(batch, way, backend, when, other):
        """The median over the rounds of the way's time to another's, which is `(way, when)`."""
        each = (of[batch, way, backend, when, i] / of[batch, other[0], backend, other[1], i] for i in range(rounds))
        return statistics.median(each)

    likeliest = next(iter(WAYS))
    text = [
        "# Drawing a token",
        "",
        f"`python benchmarks/sampling.py{' --before FOLDER' if older else ''}`, {told(lines[0])}. SmolLM2-135M, "
        f"float32, {len(CHATS)} chats, {NEW} new tokens; {rounds} rounds in which all take turns; medians of "
        "milliseconds a step. In brackets: how much longer than the step that takes the likeliest token, the median of "
        "the ratios." + (f" After the semicolon: the same for commit {older}." if older else ""),
        "",
        f"| | backend | {' | '.join(f'batch {batch}' for batch in BATCHES)} |",
        f"|---|---|{'---|' * len(BATCHES)}",
    ]
    for way in WAYS:
        for backend in ("tensorflow", "jax"):
            cells = []
            for batch in BATCHES:
                parts = []
                for when in ("now", "before") if older else ("now",):
                    ms = statistics.median(of[batch, way, backend, when, i] for i in range(rounds))
                    more = ratio(batch, way, backend, when, (likeliest, when)) - 1
                    parts.append(f"{ms:.1f}" + ("" if way == likeliest else f" ({more:+.0%})"))
                cells.append("; ".join(parts))
            named = {"tensorflow": "TensorFlow", "jax": "JAX"}[backend]
            text.append(f"| {way} | {named} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--raw", type=pathlib.Path, default=RAW)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work()
        return
    measure(args.rounds, args.before, args.raw)
    raw_lines.publish(args.raw, report(raw_lines.read(args.raw)))


if __name__ == "__main__":
    main()
