"""Progress bars of what takes long, as Keras has them."""

import math
from collections.abc import Callable

import keras


class Progress:
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
