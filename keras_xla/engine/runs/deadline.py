"""What may end a generation from outside: the time, and another thread."""

import threading
import time

from keras_xla.engine.runs.generation import CALL_SECONDS


class DeadlineReached(Exception):
    """A call shall end before its prompts have run; nobody outside of the engine and its callers sees it."""


class Deadline:
    """When the generations of one call have to end.

    Args:
        max_time: Seconds from now, after which no more tokens are made; None for no limit.
        cancel: Set by another thread to end the call.
    """

    def __init__(self, max_time: float | None = None, cancel: threading.Event | None = None):
        self._end = None if max_time is None else time.monotonic() + max_time
        self._cancel = cancel

    @property
    def over(self) -> bool:
        """Whether no more tokens shall be made."""
        cancelled = self._cancel is not None and self._cancel.is_set()
        return cancelled or (self._end is not None and time.monotonic() >= self._end)

    @property
    def of_time(self) -> bool:
        """Whether time may end them."""
        return self._end is not None

    def check(self) -> None:
        """Raise `DeadlineReached` if it is over."""
        if self.over:
            raise DeadlineReached

    @property
    def seconds(self) -> float:
        """That a call of an executable may take."""
        return CALL_SECONDS if self._end is None else min(CALL_SECONDS, max(self._end - time.monotonic(), 0))
