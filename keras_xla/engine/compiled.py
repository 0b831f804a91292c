"""Executables by key: one XLA compilation each, logged with its cause."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_xla import backend
from keras_xla.backend.compile_log import RecompileError, record


@dataclass(frozen=True)
class Key:
    """What truly changes the graph of a generation; everything else is a tensor.

    Attributes:
        batch: Batch bucket.
        prompt: Prompt bucket.
        new_tokens: New-token bucket.
        source: Source bucket of an encoder-decoder; 0 without.
        encoded: Whether the source comes as hidden states.
        num_beams: Beams.
        do_sample: Whether tokens are drawn.
        eos_slots: Room for end-of-sequence ids.
        processors: Names of the logits processors.
        words: Room for bad words: how many, how long.
    """

    batch: int
    prompt: int
    new_tokens: int
    source: int
    encoded: bool
    num_beams: int
    do_sample: bool
    eos_slots: int
    processors: tuple[str, ...]
    words: tuple[int, ...]

    def __str__(self):
        mode = "sample" if self.do_sample else "greedy" if self.num_beams == 1 else "search"
        parts = [mode if self.num_beams == 1 else f"{self.num_beams} beams, {mode}"]
        parts += [f"batch {self.batch}", f"prompt {self.prompt}", f"new tokens {self.new_tokens}"]
        parts += [f"source {self.source}"] if self.source else []
        return ", ".join(parts + [name for name in self.processors if name != "min_length"])


@dataclass(frozen=True)
class EncodeKey:
    """What changes the graph of an encoder run alone."""

    batch: int
    source: tuple[int, ...]

    def __str__(self):
        return f"encode, batch {self.batch}, source {' x '.join(map(str, self.source))}"


@dataclass(frozen=True)
class ScoreKey:
    """What changes the graph of a prompt's scores without generation."""

    batch: int
    prompt: int
    source: int

    def __str__(self):
        return f"score, batch {self.batch}, prompt {self.prompt}, source {self.source}"


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
        self._compiled: dict[Any, Callable] = {}
        self._lock = threading.Lock()
        self.trace_count = 0
        self.run_eagerly = False

    def __call__(self, key: Any, *args):
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
            if cause != "first call" and self.on_recompile == "raise":
                raise RecompileError(f"{self.name} would compile again: {cause}. Warm that up, or widen the buckets.")
            before = self.trace_count
            compiled = backend.jit(self._counted(key), self._variables)
            start = time.perf_counter()
            result = compiled(*args)
            self._compiled[key] = compiled
            assert self.trace_count == before + 1, "one key is one trace"
            record(self.name, "generate", str(key), cause, time.perf_counter() - start)
            return result

    @property
    def keys(self) -> list:
        """What has been compiled, oldest first."""
        return list(self._compiled)

    def _counted(self, key):
        function = self._build(key)

        def traced(*args):
            self.trace_count += 1  # runs while tracing only
            return function(*args)

        return traced

    def _cause(self, key) -> str:
        """What sets `key` apart from the nearest one of its kind compiled so far."""
        others = [other for other in reversed(self._compiled) if type(other) is type(key)]
        if not others:
            return "first call"

        def changes(other):
            fields = [f.name for f in dataclasses.fields(key)]
            return [(f, getattr(other, f), getattr(key, f)) for f in fields if getattr(other, f) != getattr(key, f)]

        nearest = min(map(changes, others), key=len)  # of equals, the latest
        labels = {"new_tokens": "new-token bucket", **{f: f"{f} bucket" for f in ("batch", "prompt", "source")}}
        return ", ".join(f"{labels.get(field, field)} {_show(old)} -> {_show(new)}" for field, old, new in nearest)


def _show(value) -> str:
    return "(" + ", ".join(map(str, value)) + ")" if isinstance(value, tuple) else str(value)
