"""Progress bars of what takes long, as Keras has them."""

import math
import sys
from collections.abc import Callable

import keras

from keras_xla.engine.warmup import FirstCall

_WIDTH = 79  # of a line: it takes the place of the bar, which is drawn again below


class ProgressBar:
    """A progress bar for one call.

    Args:
        unit: What is counted.
        verbose: 0 for silence, 1 for a bar, `"auto"` for one where `worth_it` says so.
        worth_it: From how much is done, and how much there is, to whether `"auto"` shows the bar from then on.
        scale: How much of what is counted is one unit.
    """

    def __init__(
        self, unit: str, verbose: int | str, worth_it: Callable[[int, int], bool] = lambda *_: True, scale: int = 1
    ):
        self._unit, self._verbose, self._worth_it, self._scale = unit, verbose, worth_it, scale
        self._bar: keras.utils.Progbar | None = None
        self._shown = False

    def __call__(self, done: int, whole: int) -> None:
        """Tell how much is done, and how much there is. The first call starts the clock; with 0 it shows nothing."""
        if not self._verbose:
            return
        if self._bar is None:
            self._bar = keras.utils.Progbar(math.ceil(whole / self._scale), unit_name=self._unit)
        asked = self._worth_it(done, whole) if self._verbose == "auto" else True
        self._shown = self._shown or (asked and done > 0)
        if self._shown:
            self._bar.update(math.ceil(done / self._scale), finalize=done >= whole)


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
