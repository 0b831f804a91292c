"""Batches of other shapes than the usual ones: the last batch of an epoch, or data of many lengths."""

import math
import threading

MOST_RARE_SHAPES = 8  # beside the usual ones, that are compiled for
BATCHES_BEFORE_A_LOOK = 4  # of a shape
MOST_COUNTED = 4096  # shapes: ragged data have no end of them


class RareShapes:
    """Counts the batches of shapes that run in the plain graph beside the usual ones, and says when one is worth XLA.

    That is when the batches of that shape still to come, as often as they came so far, repay a compilation at the gain
    that the usual shapes have. At most `MOST_RARE_SHAPES` shapes are.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several threads may predict with one model
        self._runs: dict[tuple, int] = {}
        self._asked: set[tuple] = set()
        self._gain, self._compile = 0.0, math.inf

    def gains(self, gain: float, compiling: float) -> None:
        """Seconds a step that XLA saves on some shapes, and those that compiling took."""
        if gain > self._gain:
            self._gain, self._compile = gain, compiling

    def came(self, shapes: tuple) -> int | None:
        """How many batches have come since these shapes began to wait; None for others."""
        with self._lock:
            return self._runs.get(shapes)

    def was_asked(self, shapes: tuple) -> bool:
        """Whether these shapes have come so often that they were asked about."""
        return shapes in self._asked

    def wait(self, shapes: tuple) -> None:
        """Begin to count batches of these shapes."""
        with self._lock:
            self._runs[shapes] = self._runs.pop(shapes, 0)
            if len(self._runs) > MOST_COUNTED:  # the one that was asked about longest ago
                self._runs.pop(next(each for each in self._runs if each not in self._asked))

    def ripe(self, shapes: tuple, more: float) -> bool:
        """Take note of a batch; whether its shapes are worth a question now.

        `more` is how many times as many steps as were run so far are still to come.
        """
        with self._lock:
            if shapes not in self._runs:
                return False
            self._runs[shapes] += 1
            runs = self._runs[shapes]
            if shapes in self._asked or runs < BATCHES_BEFORE_A_LOOK or len(self._asked) == MOST_RARE_SHAPES:
                return False
            if runs * more * self._gain < self._compile:
                return False
            self._asked.add(shapes)
            return True
