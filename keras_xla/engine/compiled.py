"""Executables by key: one XLA compilation each, logged with its cause."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_xla import backend
from keras_xla.backend import events


@dataclass(frozen=True)
class Key:
    """What truly changes the graph; everything else is a tensor.

    Attributes:
        batch: Batch bucket.
        prompt: Prompt bucket.
        new_tokens: New-token bucket.
        do_sample: Whether tokens are drawn.
        eos_slots: Room for end-of-sequence ids.
    """

    batch: int
    prompt: int
    new_tokens: int
    do_sample: bool
    eos_slots: int

    def __str__(self):
        mode = "sample" if self.do_sample else "greedy"
        return f"{mode}, batch {self.batch}, prompt {self.prompt}, new tokens {self.new_tokens}"


class Executables:
    """Compiles a function for each key at its first use, and never again.

    Args:
        name: What is compiled, for the log.
        build: From a key to a pure function of tensors.
        variables: What those functions read.
        on_recompile: `"log"`, or `"raise"`: once one key is compiled, a new one is a `RecompileError`.
    """

    def __init__(self, name: str, build: Callable, variables: Sequence, on_recompile: str = "log"):
        if on_recompile not in ("log", "raise"):
            raise ValueError(f'Received on_recompile={on_recompile!r}; expected "log" or "raise".')
        self.name, self.on_recompile = name, on_recompile
        self._build, self._variables = build, variables
        self._compiled: dict[Key, Callable] = {}
        self._lock = threading.Lock()
        self.trace_count = 0
        self.run_eagerly = False

    def __call__(self, key: Key, *args):
        """Run the executable of `key`, compiling it if it is new."""
        if self.run_eagerly:
            return backend.run_eagerly(self._build(key), *args)
        compiled = self._compiled.get(key)
        if compiled is not None:
            return compiled(*args)
        with self._lock:  # two threads with the same new key must not both compile
            if key in self._compiled:
                return self._compiled[key](*args)
            cause = self._cause(key)
            if self._compiled and self.on_recompile == "raise":
                raise events.RecompileError(
                    f"{self.name} would compile again: {cause}. Warm that up, or widen the buckets."
                )
            before = self.trace_count
            compiled = backend.jit(self._counted(key), self._variables)
            start = time.perf_counter()
            result = compiled(*args)
            self._compiled[key] = compiled
            assert self.trace_count == before + 1, "one key is one trace"
            events.record(self.name, "generate", str(key), cause, time.perf_counter() - start)
            return result

    @property
    def keys(self) -> list[Key]:
        """What has been compiled, oldest first."""
        return list(self._compiled)

    def _counted(self, key):
        function = self._build(key)

        def traced(*args):
            self.trace_count += 1  # runs while tracing only
            return function(*args)

        return traced

    def _cause(self, key: Key) -> str:
        """What sets `key` apart from the nearest one compiled so far."""
        if not self._compiled:
            return "first call"

        def changes(other):
            fields = [f.name for f in dataclasses.fields(Key)]
            return [(f, getattr(other, f), getattr(key, f)) for f in fields if getattr(other, f) != getattr(key, f)]

        nearest = min(map(changes, reversed(self._compiled)), key=len)  # of equals, the latest
        labels = {"batch": "batch bucket", "prompt": "prompt bucket", "new_tokens": "new-token bucket"}
        return ", ".join(f"{labels.get(field, field)} {old} -> {new}" for field, old, new in nearest)
