"""Warming up: calls whose results nobody wants, so that their executables are there. They run side by side."""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from keras_xla import backend
from keras_xla.engine.executables import Executables
from keras_xla.engine.states.state_pool import StatePool

MOST_THREADS = 8  # XLA takes hundreds of megabytes for each executable that it makes; and tracing is for one at a time

OnFirstCall = Callable[["FirstCall", float], None]


@dataclass(frozen=True)
class FirstCall:
    """A call that compiles an executable.

    Attributes:
        executables: Where it belongs.
        key: Its own.
        run: From states of these keys, whatever their values are, to results of no use. It needs no other first call.
        states: Keys of a `StatePool`.
    """

    executables: Executables
    key: Any
    run: Callable[..., Any]
    states: tuple = ()


def silent(count: int) -> OnFirstCall:
    """Tells nobody of `count` executables."""
    return lambda call, seconds: None


def warm_up(
    calls: Iterable[FirstCall],
    pool: StatePool,
    state_bytes: Callable[[Any], int],
    most_bytes: int,
    progress: Callable[[int], OnFirstCall] = silent,
) -> None:
    """Make the first calls of executables that are not there, as many at once as this process may use cores.

    Args:
        calls: Of several for one executable, the first is made.
        pool: Where their states come from, and go afterwards.
        state_bytes: Of a state, by its key.
        most_bytes: That the states of calls which run at once may hold; one call may need more.
        progress: From how many calls there are to what is told of each that has ended, and its seconds.

    Raises:
        Exception: of the first call that fails, once those beside it have ended; no other begins.
    """
    new: dict[Any, FirstCall] = {}
    for call in calls:
        if call.executables.compiles(call.key):
            new.setdefault(call.key, call)
    if not new:
        return
    sizes = {key: sum(map(state_bytes, call.states)) for key, call in new.items()}
    waiting, threads = deque(new.values()), min(cores(), MOST_THREADS)
    report, settings = progress(len(new)), backend.thread_settings()
    ended: queue.SimpleQueue[tuple[FirstCall, float, BaseException | None]] = queue.SimpleQueue()

    def make(call: FirstCall) -> None:
        start = time.perf_counter()
        failed: BaseException | None = None
        try:
            with backend.with_thread_settings(settings), call.executables.warming():
                states = [pool.take(key) for key in call.states]
                call.run(*states)
            for key, state in zip(call.states, states, strict=True):
                pool.give(key, state)
        except BaseException as error:
            failed = error
        ended.put((call, time.perf_counter() - start, failed))

    going = held = 0
    first: BaseException | None = None
    while waiting or going:
        while waiting and going < threads and (not going or held + sizes[waiting[0].key] <= most_bytes):
            call = waiting.popleft()
            going, held = going + 1, held + sizes[call.key]
            # A daemon: neither Ctrl-C nor the end of the process waits for it.
            threading.Thread(target=make, args=(call,), daemon=True, name=f"warm up {call.key}").start()
        call, seconds, failed = ended.get()
        going, held = going - 1, held - sizes[call.key]
        if failed is None:
            report(call, seconds)
        else:
            first = first or failed
            waiting.clear()
    pool.trim()
    if first is not None:
        raise first


def cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
