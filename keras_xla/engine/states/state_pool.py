"""States of generations that have ended, kept for the next of the same size: making one takes memory and time."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from keras_xla.backend import DeviceState

IDLE_BYTES = 2**30  # of all states that nobody uses


class StatePool:
    """Idle states by key; those used longest ago go first when there are too many.

    A state belongs to one generation at a time. What fails or is cut off does not come back.

    Args:
        make: From a key to a new state.
        idle_bytes: The most that idle states may hold together.
    """

    def __init__(self, make: Callable[[Any], DeviceState], idle_bytes: int = IDLE_BYTES):
        self._make, self._idle_bytes = make, idle_bytes
        self._idle: OrderedDict[Any, list[DeviceState]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: Any) -> DeviceState:
        """A state that nobody else has; its values are whatever they were."""
        with self._lock:
            states = self._idle.get(key)
            if states:
                state = states.pop()
                if not states:
                    del self._idle[key]
                return state
        return self._make(key)

    def give(self, key: Any, state: DeviceState) -> None:
        """Hand a state back."""
        with self._lock:
            self._idle.setdefault(key, []).append(state)
            self._idle.move_to_end(key)
            while self.nbytes > self._idle_bytes:
                oldest = next(iter(self._idle))
                self._idle[oldest].pop(0)
                if not self._idle[oldest]:
                    del self._idle[oldest]

    def trim(self) -> None:
        """Keep one idle state of each size: what ran side by side once need not do so again."""
        with self._lock:
            for states in self._idle.values():
                del states[1:]

    @property
    def nbytes(self) -> int:
        """Of all idle states together."""
        return sum(state.nbytes for states in self._idle.values() for state in states)
