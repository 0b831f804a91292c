"""One scenario on one side: all that can be seen of it."""

import contextlib
import io
import logging
import pathlib
import random
import re
import tempfile
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import _frequent_tracing_detector_manager

from tests.differential.compare import Tolerance, differences
from tests.differential.data import RAISED
from tests.differential.scenario import Scenario
from tests.differential.ways import Side
from tests.differential.world import World

ROUNDING = {"float32": 2e-4, "mixed_bfloat16": 5e-2, "mixed_float16": 2e-2}
REASONS = (  # of an error that an operation raised: the rest of the message tells where in the graph
    r"indices\[[\d, ]*\] = -?\d+ is not in \[\d+, \d+\)",
    r"Received a label value of .*? outside the valid range of .*?\)",
    r"assertion failed: \[[^]]*\]",
    r"Matrix size-incompatible: In\[0\]: \[[\d,]*\], In\[1\]: \[[\d,]*\]",
)


def compared(scenario: Scenario) -> list[str]:
    """Runs it in plain Keras and in keras_xla; what differs."""
    ours = Side(scenario.way, scenario.entry)
    expected, made = events(scenario, Side(), ours.exact), events(scenario, ours, ours.exact)
    return differences(expected, made, Tolerance(0.0 if ours.exact else ROUNDING[scenario.dtype]))


def events(scenario: Scenario, side: Side, exact: bool = True) -> list[tuple[str, Any]]:
    """What is seen on that side, in order.

    Args:
        exact: Whether the reason counts that an operation gives for an error; XLA's has words of its own.
    """
    keras.backend.clear_session(free_memory=False)
    _frequent_tracing_detector_manager._detectors.clear()  # it counts all models of a process together
    keras.utils.set_random_seed(scenario.seed)
    with tempfile.TemporaryDirectory() as folder, side.active():
        world = World(scenario.kind, scenario.dtype, side, pathlib.Path(folder))
        for number, action in enumerate(scenario.actions):
            label, failed = f"{number} {type(action).__name__}", None
            with _outlets(side) as outlets:
                try:
                    value = action.run(world)
                except (Exception, KeyboardInterrupt) as error:  # whatever it is, it is to be the same
                    value, failed = _described(error, exact, folder), error
            world.note(label, value)
            for name, text in outlets.items():
                world.note(f"{label}: {name}", text)
            # What ran beside the operation that failed is left to chance: plain Keras' counter of steps, say, which
            # goes on while the step waits for its batch.
            of_data = isinstance(failed, tf.errors.OpError) and RAISED in str(failed)
            if of_data or isinstance(failed, tf.errors.InvalidArgumentError):
                world.note(f"{label}: weights", world.model.trainable_variables)
                return world.events
            if failed is not None and RAISED not in str(failed):
                # Where its first trace failed, plain Keras' step says "Creating variables on a non-first call" ever
                # after, and ours has made the optimizer's variables by then.
                return world.events
            world.note(f"{label}: state", world.state())
        world.note("files", {path.name: path.read_text() for path in sorted(pathlib.Path(folder).glob("*.csv"))})
        world.note("random numbers afterwards", _random_numbers())
        return world.events


def _random_numbers() -> dict[str, Any]:
    """Of every source that a user may have seeded."""
    return {
        "Python": random.random(),
        "NumPy": np.random.uniform(),
        "Keras": keras.random.uniform(()),
        "TensorFlow": tf.random.uniform(()),
    }


def _described(error: BaseException, exact: bool, folder: str) -> dict[str, str]:
    kind, message = f"{type(error).__module__}.{type(error).__qualname__}", str(error).replace(folder, "FOLDER")
    if isinstance(error, tf.errors.OpError):
        found = re.search("|".join(REASONS), message)
        message = found[0] if found and exact else ""
    return {"raised": kind, "message": _without_names(message)}


@contextlib.contextmanager
def _outlets(side: Side):
    """What is printed, warned of and logged."""
    outlets: dict[str, Any] = {}
    logged = _Logged()
    loggers = [logging.getLogger(name) for name in ("tensorflow", "absl")]
    for logger in loggers:
        logger.addHandler(logged)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            yield outlets
    finally:
        for logger in loggers:
            logger.removeHandler(logged)
    outlets["printed"] = _without_times(out.getvalue())
    kinds = (DeprecationWarning, PendingDeprecationWarning, ResourceWarning)
    outlets["warnings"] = [
        f"{each.category.__name__}: {_without_names(str(each.message))}"
        for each in warned
        if not issubclass(each.category, kinds) and not (side.way and _SAID_AGAIN in str(each.message))
    ]
    # Plain Keras' own functions may be traced too often; ours may not.
    outlets["logged"] = [text for text in logged.messages if side.way or "retracing" not in text]


_SAID_AGAIN = "was compiled again by its own compile method"  # what keras_xla says of that, once


class _Logged(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record):
        self.messages.append(_without_names(record.getMessage()))


def _without_names(text: str) -> str:
    """Without addresses and the numbers that TensorFlow gives to functions."""
    return re.sub(r"__inference_\w+|0x[0-9a-f]+", "NAME", text)


_BAR = re.compile(r"\s*(\d+)/(\d+|Unknown)")


def _without_times(text: str) -> str:
    """The progress bars that came to their end, without how long it took: those on the way are printed by the clock."""
    text = re.sub(r"\x1b\[[\d;]*m|\x08", "", text)
    lines = [line.rsplit("\r", 1)[-1] for line in text.split("\n")]
    if _BAR.match(lines[-1]):  # no end of line: an error came before the bar's end
        del lines[-1]
    lines = [re.sub(r" \d+(?:s|ms|us)(?:/(?:step|epoch))?(?= |$)", " TIME", line) for line in lines]
    return "\n".join(line.rstrip() for line in lines if not _on_the_way(line))


def _on_the_way(line: str) -> bool:
    counts = _BAR.match(line)
    return counts is not None and counts[1] != counts[2]
