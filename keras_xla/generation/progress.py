"""How far a warm-up is: Keras' bar, and what has been compiled above it."""

import sys

import keras

from keras_xla.engine.warmup import FirstCall

_WIDTH = 79  # of a line: it takes the place of the bar, which is drawn again below


class CompileProgress:
    """A line for each executable that has been compiled, and how long it took; below them a bar of all.

    Args:
        count: How many there will be.
    """

    def __init__(self, count: int):
        self._bar = keras.utils.Progbar(count, unit_name="executable", interval=0)
        self._bar.update(0)

    def __call__(self, call: FirstCall, seconds: float) -> None:
        """Tell of one that is there now."""
        if keras.config.is_interactive_logging_enabled():  # as for the bar; else a log has only the bar
            sys.stdout.write("\r" + f"{call.key!s:60} {seconds:6.1f} s".ljust(_WIDTH) + "\n")
        self._bar.add(1)
