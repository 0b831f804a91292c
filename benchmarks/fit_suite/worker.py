"""One fit of one model in a process of its own; prints what it measured as a line of JSON.

python benchmarks/fit_suite/worker.py MODEL MODE EPOCHS --rows N
"""

import argparse
import importlib
import json
import math
import time

import keras
import tensorflow as tf
from case import Case
from models import MODELS

PREDICTS = 11  # the first compiles; a `tf.data` iterator's pauses come in some of the others


def default(model: keras.Model, arguments: dict) -> None:
    model.compile(**arguments)


def forced(model: keras.Model, arguments: dict) -> None:
    model.compile(**arguments, jit_compile=True)


def ours(model: keras.Model, arguments: dict) -> None:
    import keras_xla

    keras_xla.compile(model, **arguments, jit_compile="auto")


MODES = {"default": default, "forced": forced, "ours": ours}


class EpochTimes(keras.callbacks.Callback):
    """Seconds of each epoch. It asks for nothing at batches: that could slow them down."""

    def __init__(self):
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


def measure(case: Case, mode: str, rows: int, epochs: int, predictions: int) -> dict:
    """Compile, fit and predict; only what `Model.compile` and `Model.fit` do is on the first clock."""
    model, arguments, times = case.make(), case.compile_arguments(), EpochTimes()
    data, inputs = case.fit_arguments(rows), case.predict_arguments(rows)
    start = time.perf_counter()
    MODES[mode](model, arguments)
    history = model.fit(**data, epochs=epochs, verbose=0, callbacks=[times])
    seconds = time.perf_counter() - start
    losses = history.history["loss"]
    if not all(map(math.isfinite, losses)):
        raise SystemExit(f"the loss is not finite: {losses}")
    predicts = []
    for _ in range(predictions):
        start = time.perf_counter()
        model.predict(**inputs, verbose=0)
        predicts.append(time.perf_counter() - start)
    return dict(
        seconds=seconds,
        epochs=times.seconds,
        predicts=predicts,
        losses=losses,
        jit=bool(model.jit_compile),
        report=report(model) if mode == "ours" else None,
    )


def report(model: keras.Model) -> str | None:
    """What keras_xla says that it chose, from the version on that has such a report."""
    import keras_xla

    make = getattr(keras_xla, "model_report", None)
    return str(make(model)) if make else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("epochs", type=int)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--rows", type=int, help="rows of the data to use")
    length.add_argument("--steps", type=int, help="whole batches to use; then nothing is predicted")
    args = parser.parse_args()
    if args.mode == "ours":
        importlib.import_module("keras_xla")  # not on the clock, and not in the processes of plain Keras
    case = MODELS[args.model]()
    rows = min(case.rows, args.rows or args.steps * case.batch_size)
    measured = measure(case, args.mode, rows, args.epochs, predictions=0 if args.steps else PREDICTS)
    sizes = dict(rows=rows, all_rows=case.rows, batch_size=case.batch_size)
    versions = dict(tensorflow=tf.__version__, keras=keras.__version__)
    print(json.dumps({**measured, **sizes, **versions}), flush=True)


if __name__ == "__main__":
    main()
