"""States that nobody works with: for the next generation of the same size, or for whoever goes on with its prompt."""

import queue
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
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
        self._kept: dict[weakref.ref, Any] = {}  # of owners, those used longest ago first
        self._handed_back: queue.SimpleQueue[tuple[Any, Any, Any]] = queue.SimpleQueue()
        self._lock, self._changing = threading.RLock(), False

    def take(self, key: Any) -> DeviceState:
        """A state that nobody else has; its values are whatever they were."""
        state = self._alone(self._pop, key)
        return self._make(key) if state is None else state

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
        return self._alone(self._kept.pop, weakref.ref(owner), None)

    def drop_kept(self, useless: Callable[[Any], bool]) -> None:
        """Let go of what is kept for owners and is `useless(kept)`; its state is anybody's."""
        for owner in list(self._kept):
            kept = self._kept.get(owner)
            if kept is not None and useless(kept):  # asked outside of the lock: it may take a while
                self._alone(self._drop, owner, kept)

    def latest_kept(self) -> Any:
        """What was kept last, by whomever; None if there is nothing."""
        for owner in reversed(list(self._kept)):
            if (kept := self._kept.get(owner)) is not None:
                return kept
        return None

    def trim(self) -> None:
        """Keep one idle state of each size: what ran side by side once need not do so again."""
        self._alone(self._drop_more_than_one)

    @property
    def nbytes(self) -> int:
        """Of all idle states together."""
        return self._alone(self._idle_nbytes)

    def _hand_back(self, owner: weakref.ref | None, key: Any, what: Any) -> None:
        self._handed_back.put((owner, key, what))
        with self._lock:
            if not self._changing:  # else this thread is in the middle of a change, and has it the next time
                self._change(lambda: None)

    def _alone(self, change: Callable, *args: Any) -> Any:
        """What a change returns that runs when all that was handed back has been put away."""
        with self._lock:
            return self._change(change, *args)

    def _change(self, change: Callable, *args: Any) -> Any:
        try:
            self._changing = True
            while not self._handed_back.empty():
                owner, key, what = self._handed_back.get_nowait()
                if owner is None:
                    self._put(key, what)
                elif (there := owner()) is not None:
                    self._keep(there, what)
                else:
                    self._put(key, what.state)
            return change(*args)
        finally:
            self._changing = False

    # Ctrl-C may end each of these in any line: a size without a state may stay, and costs nothing.

    def _pop(self, key: Any) -> DeviceState | None:
        states = self._idle.get(key)
        state = states.pop() if states else None
        if not states:
            self._idle.pop(key, None)
        return state

    def _put(self, key: Any, state: DeviceState) -> None:
        self._idle.setdefault(key, []).append(state)
        self._idle.move_to_end(key)
        while self._idle_nbytes() > self._idle_bytes:
            oldest, states = next(iter(self._idle.items()))
            if states:
                states.pop(0)
            if not states:
                self._idle.pop(oldest, None)

    def _drop_more_than_one(self) -> None:
        for states in self._idle.values():
            del states[1:]

    def _keep(self, owner: Any, kept: Any) -> None:
        key = weakref.ref(owner, lambda gone: self._kept.pop(gone, None))
        before = self._kept.pop(key, None)
        if before is not None:
            self._put(before.key, before.state)
        self._kept[key] = kept  # behind all others
        for each in list(self._kept)[:-1]:  # of one that is gone, Ctrl-C may have left the state here
            if each() is None or self._kept_nbytes() > self._kept_bytes:
                self._kept.pop(each, None)

    def _drop(self, owner: weakref.ref, useless: Any) -> None:
        kept = self._kept.get(owner)
        if kept is not None and kept is useless:
            self._kept.pop(owner, None)
            self._put(kept.key, kept.state)

    def _kept_nbytes(self) -> int:
        return sum(kept.state.nbytes for kept in list(self._kept.values()))

    def _idle_nbytes(self) -> int:
        return sum(state.nbytes for states in self._idle.values() for state in states)
