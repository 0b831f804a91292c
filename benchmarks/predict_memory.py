"""How much the peak memory of a process grows in `predict`, plain Keras and keras_xla, next to the size of the outputs.

python benchmarks/predict_memory.py [--rows N] > benchmarks/results/predict_memory.md
"""

import argparse
import json
import resource
import subprocess
import sys
import time

LENGTH, VOCABULARY, WIDTH, BATCH = 40, 4000, 96, 16


def measure(mode: str, kind: str, rows: int) -> None:
    """Predict the words after every word, and print what it took."""
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
    if mode == "ours":
        import keras_xla

        keras_xla.compile(model)
    else:
        model.compile()
    tokens = np.zeros((rows, LENGTH), "int32")
    model.predict(tokens[:BATCH], batch_size=BATCH, verbose=0)
    data = tf.data.Dataset.from_tensor_slices(tokens).batch(BATCH) if kind == "dataset" else tokens
    before = peak()
    outputs = model.predict(data, batch_size=None if kind == "dataset" else BATCH, verbose=0)
    print(json.dumps({"outputs": outputs.nbytes / 1e6, "grew": peak() - before}))


def peak() -> float:
    """The most memory that this process has had, in megabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        return measure(*args.only, args.rows)
    print("# Memory of `predict` with large outputs\n")
    print(
        f"`python benchmarks/predict_memory.py --rows {args.rows}`, {time.strftime('%Y-%m-%d')}, batches of {BATCH}\n"
    )
    print("| data | mode | outputs, MB | peak memory grew by, MB | ratio |\n|---|---|---|---|---|")
    for kind in ("arrays", "dataset"):
        for mode in ("default", "ours"):
            command = [sys.executable, __file__, "--rows", str(args.rows), "--only", mode, kind]
            ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            got = json.loads(ran.stdout.splitlines()[-1])
            outputs, grew = got["outputs"], got["grew"]
            print(f"| {kind} | {mode} | {outputs:.0f} | {grew:.0f} | {grew / outputs:.2f} |")
    return None


if __name__ == "__main__":
    main()
