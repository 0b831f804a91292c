"""How much the peak memory of a process grows in `predict`, plain Keras and keras_xla, next to the size of the outputs.

    python benchmarks/predict_memory.py

Every line is a process of its own; in a round all take turns.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys

import raw_lines
from facts import measured, told
from medians import middle

HERE = pathlib.Path(__file__).resolve().parent
RAW = HERE / "results" / "predict_memory.jsonl"
LENGTH, VOCABULARY, WIDTH, BATCH = 40, 4000, 96, 16
WAYS = {"plain": "plain Keras", "ours": "keras_xla"}


def predict(way: str, kind: str, rows: int) -> dict:
    """What it takes to predict the words after every word."""
    import keras
    import numpy as np
    import tensorflow as tf

    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY, WIDTH),
            keras.layers.Dense(VOCABULARY),
        ]
    )
    if way == "ours":
        import keras_xla

        keras_xla.compile(model)
    else:
        model.compile()
    tokens = np.zeros((rows, LENGTH), "int32")
    model.predict(tokens[:BATCH], batch_size=BATCH, verbose=0)
    data = tf.data.Dataset.from_tensor_slices(tokens).batch(BATCH) if kind == "dataset" else tokens
    before = peak()
    outputs = model.predict(data, batch_size=None if kind == "dataset" else BATCH, verbose=0)
    return dict(outputs=outputs.nbytes, grew=peak() - before)


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    rounds = 1 + max(line["round"] for line in lines)
    text = [
        "# Memory of `predict` with large outputs",
        "",
        f"`python benchmarks/predict_memory.py`, {told(lines[0])}. {lines[0]['rows']} rows in batches of {BATCH}; "
        f"{rounds} rounds in which all take turns, medians, and in brackets the lowest and the highest.",
        "",
        "| data | | outputs, MB | peak memory grew by, MB | times the outputs |",
        "|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(line["kind"] for line in lines):
        for way, name in WAYS.items():
            mine = [line for line in lines if (line["kind"], line["way"]) == (kind, way)]
            grew, outputs = [line["grew"] / 1e6 for line in mine], mine[0]["outputs"] / 1e6
            ratio = statistics.median(grew) / outputs
            text.append(f"| {kind} | {name} | {outputs:.0f} | {middle(grew, '.0f')} | {ratio:.2f} |")
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the page stands beside them")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(predict(*args.only, args.rows)))
        return
    when, lines = measured("keras", "tensorflow"), []
    for number in range(args.rounds):
        for kind in ("arrays", "dataset"):
            for way in WAYS:
                command = [sys.executable, __file__, "--rows", str(args.rows), "--only", way, kind]
                ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                got = json.loads(ran.stdout.splitlines()[-1])
                lines.append(dict(kind=kind, way=way, round=number, rows=args.rows, **got, **when))
                raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
