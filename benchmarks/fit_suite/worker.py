"""One fit of one model in a process of its own; prints what it measured as a line of JSON.

python benchmarks/fit_suite/worker.py MODEL CONTENDER EPOCHS --rows N

KERAS_BACKEND has to be the contender's; `run.py` sees to it.
"""

import argparse
import importlib
import json
import math
import time
from importlib.metadata import version

import keras
from case import Case
from contenders import CONTENDERS, Contender
from models import MODELS

PREDICTS = 7  # the first compiles; a `tf.data` iterator's pauses come in some of the others


class EpochTimes(keras.callbacks.Callback):
    """Seconds of each epoch. It asks for nothing at batches: that could slow them down."""

    def __init__(self):
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


def measure(case: Case, contender: Contender, rows: int, epochs: int, seed: int, predictions: int) -> dict:
    """Compile, fit and predict; only what `Model.compile` and `Model.fit` do is on the first clock."""
    model, arguments, times = case.make(seed), case.compile_arguments(), EpochTimes()
    data, inputs = case.fit_arguments(rows), case.predict_arguments(rows)
    start = time.perf_counter()
    contender.compile(model, arguments)
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
        step_bytes=step_bytes(model, case),
        report=report(model) if contender.ours else None,
    )


def step_bytes(model: keras.Model, case: Case) -> int:
    """The least that a train step moves: its batch read, every weight and the optimizer's state read and written."""
    state = {id(variable): variable for variable in (*model.variables, *model.optimizer.variables)}.values()
    held = sum(keras.ops.convert_to_numpy(variable).nbytes for variable in state)
    batch = sum(array[: case.batch_size].nbytes for array in keras.tree.flatten(case.data))
    return 2 * held + batch


def report(model: keras.Model) -> str:
    """What keras_xla says that it chose."""
    import keras_xla

    return str(keras_xla.model_report(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("contender", choices=list(CONTENDERS))
    parser.add_argument("epochs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--rows", type=int, help="rows of the data to use")
    length.add_argument("--steps", type=int, help="whole batches to use; then nothing is predicted")
    args = parser.parse_args()
    contender = CONTENDERS[args.contender]
    if keras.backend.backend() != contender.backend:
        parser.error(f"{args.contender} runs on KERAS_BACKEND={contender.backend}, not {keras.backend.backend()}")
    case = MODELS[args.model]()
    if why := case.not_on.get(contender.backend):
        print(json.dumps({"skipped": why}), flush=True)
        return
    if contender.ours:
        importlib.import_module("keras_xla")  # not on the clock, and not in the processes of plain Keras
    rows = min(case.rows, args.rows or args.steps * case.batch_size)
    predictions = 0 if args.steps or contender.partial else PREDICTS
    measured = measure(case, contender, rows, args.epochs, args.seed, predictions)
    sizes = dict(rows=rows, all_rows=case.rows, batch_size=case.batch_size)
    versions = {name: version(name) for name in ("keras", "tensorflow", "numpy")}
    if contender.backend == "jax":
        versions["jax"] = version("jax")
    print(json.dumps({**measured, **sizes, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
