"""States that nobody works with: for the next generation of the same size, or for whoever goes on with its prompt."""

import contextlib
import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from keras_xla.backend import DeviceState

IDLE_BYTES = 2**30  # of all states that are nobody's


class StatePool:
    """States between generations; where there are too many, those used longest ago go first.

    Some are idle: they serve the next generation of their size, for making one takes memory and time. Others are kept
    for an owner, such as a chat, whose prompt stands in them. Both can be lost without changing an answer.

    A state belongs to one generation at a time. What fails or is cut off does not come back. A stream that nobody holds
    any more hands its state back wherever Python collects garbage, in the middle of a method of this class, too: what
    `give` and `keep` get then is put away by the next method that is called.

    Args:
        make: From a key to a new state.
        idle_bytes: The most that idle states may hold together.
        kept_bytes: The most that kept states may hold together. The latest stays even if it alone holds more.
    """

    def __init__(self, make: Callable[[Any], DeviceState], idle_bytes: int = IDLE_BYTES, kept_bytes: int = IDLE_BYTES):
        self._make, self._idle_bytes, self._kept_bytes = make, idle_bytes, kept_bytes
        self._idle: OrderedDict[Any, list[DeviceState]] = OrderedDict()
        self._kept: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()  # and its bytes
        self._handed_back: queue.SimpleQueue[tuple[Any, Any, Any]] = queue.SimpleQueue()
        self._lock, self._changing = threading.RLock(), False

    def take(self, key: Any) -> DeviceState:
        """A state that nobody else has; its values are whatever they were."""
        with self._settled():
            states = self._idle.get(key)
            if states:
                state = states.pop()
                if not states:
                    del self._idle[key]
                return state
        return self._make(key)

    def give(self, key: Any, state: DeviceState) -> None:
        """Hand a state back, for anybody."""
        self._hand_back(None, key, state)

    def keep(self, owner: Any, kept: Any) -> None:
        """Hand a state back for its owner, until that is gone or others need the room.

        Args:
            owner: Who may take it again. A state that was kept for it before is anybody's now.
            kept: What has a `key` and a `state`.
        """
        self._hand_back(weakref.ref(owner), kept.key, kept)

    def take_kept(self, owner: Any) -> Any:
        """What was kept for an owner, who has it from now on; None if it is not there."""
        with self._settled():
            kept, _ = self._kept.pop(owner, (None, 0))
            return kept

    def trim(self) -> None:
        """Keep one idle state of each size: what ran side by side once need not do so again."""
        with self._settled():
            for states in self._idle.values():
                del states[1:]

    @property
    def nbytes(self) -> int:
        """Of all idle states together."""
        with self._settled():
            return self._idle_nbytes()

    def _hand_back(self, owner: Any, key: Any, what: Any) -> None:
        self._handed_back.put((owner, key, what))
        with self._lock:
            if not self._changing:  # else this thread is in the middle of a change, and has it the next time
                with self._settled():
                    pass

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """Alone with the states, when what was handed back has been put away."""
        with self._lock:
            before, self._changing = self._changing, True
            try:
                while not self._handed_back.empty():
                    owner, key, what = self._handed_back.get_nowait()
                    if owner is None:
                        self._put(key, what)
                    elif (there := owner()) is not None:
                        self._keep(there, what)
                    else:
                        self._put(key, what.state)
                yield
            finally:
                self._changing = before

    def _put(self, key: Any, state: DeviceState) -> None:
        self._idle.setdefault(key, []).append(state)
        self._idle.move_to_end(key)
        while self._idle_nbytes() > self._idle_bytes:
            oldest = next(iter(self._idle))
            self._idle[oldest].pop(0)
            if not self._idle[oldest]:
                del self._idle[oldest]

    def _keep(self, owner: Any, kept: Any) -> None:
        before, _ = self._kept.pop(owner, (None, 0))
        if before is not None:
            self._put(before.key, before.state)
        self._kept[owner] = kept, kept.state.nbytes  # behind all others
        while len(self._kept) > 1 and sum(size for _, size in self._kept.values()) > self._kept_bytes:
            self._kept.pop(next(iter(self._kept)), None)

    def _idle_nbytes(self) -> int:
        return sum(state.nbytes for states in self._idle.values() for state in states)
