"""Executables by key: one XLA compilation each, logged with its cause."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from keras_xla import backend
from keras_xla.backend.compile_log import FIRST_CALL, RecompileError, record
from keras_xla.backend.executable_cache.cache import ExecutableCache
from keras_xla.backend.memory import lacks_memory
from keras_xla.engine.kept import KeptExecutables


def check_on_recompile(value: Any) -> None:
    """Raise a `ValueError` for what is no setting of `Executables`."""
    if value not in ("log", "raise"):
        raise ValueError(f'Received on_recompile={value!r}; expected "log" or "raise".')


class Executables:
    """Compiles a function for each key at its first use, and never again.

    A first use runs in a thread of its own, so that Ctrl-C ends the wait for it: the compilation goes on, and what it
    made serves the next call. Different keys compile at the same time, if several threads ask for them. Only tracing is
    for one at a time: it is Python's work, and models need not be safe to call from several threads.

    Args:
        name: What is compiled, for the log.
        build: From a key to a function, and the names of what it works on in a state: `build(key) -> function, names`.
            The function takes tensors. Where there are names it takes those values of a `backend.DeviceState` before
            them, and returns these and its outputs.
        variables: What those functions read.
        more_variables: From a key to what else its function reads.
        on_recompile: `"log"`, or `"raise"`: once one key of a kind is compiled, or being compiled, a new one is a
            `RecompileError`.
        computes: A function that returns what the functions compute, see `kept.what_is_computed`.
        tracing: The lock that is held while a function is traced; by default one of its own.

    Attributes:
        kept: Those on disk, which are read instead of compiled.
    """

    def __init__(
        self,
        name: str,
        build: Callable,
        variables: Sequence,
        on_recompile: str = "log",
        more_variables: Callable[[Any], Sequence] = lambda key: (),
        computes: Callable[[], str | None] = lambda: None,
        tracing: contextlib.AbstractContextManager | None = None,
    ):
        check_on_recompile(on_recompile)
        self.name, self.on_recompile = name, on_recompile
        self._build, self._variables, self._more_variables = build, variables, more_variables
        self._compiled: dict[Any, _Stateless | backend.OnState] = {}
        self._begun: dict[Any, threading.Event] = {}  # what is being compiled; set when that has ended
        self._lock, self._tracing = threading.Lock(), tracing or threading.Lock()  # of these two; of `trace_count`
        self.kept = KeptExecutables(computes, variables)
        self._warming = threading.local()
        self.trace_count = 0
        self.run_eagerly = False

    def __call__(self, key: Any, *args, weights: list | None = None):
        """Run the executable of `key`, compiling it if it is new.

        `weights` are what `read_weights` returned, and the values of `more_variables` if there are any; by default
        those of now.
        """
        if self.run_eagerly:
            return self._run_eagerly(key, *args)
        if weights is None:
            weights = [*self.read_weights(), *backend.read_weights(self._more_variables(key))]
        compiled = self._compiled.get(key)
        return self._first(key, args, weights) if compiled is None else compiled(*args, weights=weights)

    def read_weights(self) -> list:
        """The values that the functions' variables have in this thread: reading them takes longer than a call."""
        return backend.read_weights(self._variables)

    @contextlib.contextmanager
    def warming(self) -> Iterator[None]:
        """In this thread, new keys compile whatever `on_recompile` says."""
        self._warming.on = True
        try:
            yield
        finally:
            self._warming.on = False

    @property
    def may_compile(self) -> bool:
        """Whether a new key of a known kind compiles in this thread, rather than raises."""
        return self.on_recompile == "log" or getattr(self._warming, "on", False)

    def compiles(self, key: Any) -> bool:
        """Whether a call would compile, or wait until another thread has."""
        return not self.run_eagerly and key not in self._compiled

    def _first(self, key, args, weights):
        result = Future()
        settings, may_compile = backend.thread_settings(), self.may_compile

        def run():
            try:
                with backend.with_thread_settings(settings):
                    result.set_result(self._compile_once(key, args, weights, may_compile))
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, daemon=True, name=f"compile {self.name}").start()
        return result.result()

    def _compile_once(self, key, args, weights, may_compile):
        """Run the executable of `key`, which this thread compiles unless another one does."""
        begun = self._begin(key, may_compile)
        if begun is None:
            return self._compiled[key](*args, weights=weights)
        try:
            return self._compile(key, *begun, args, weights)
        finally:
            with self._lock:
                self._begun.pop(key).set()

    def _begin(self, key, may_compile) -> tuple[str, bool] | None:
        """Why this thread has to make the executable of `key`, and whether it may compile, rather than only read it.

        None where another one has made it, which may take a while.
        """
        while True:
            with self._lock:
                if key in self._compiled:
                    return None
                elsewhere = self._begun.get(key)
                if elsewhere is None:
                    changes = self._changes(key)
                    cause = FIRST_CALL if changes is None else _told(changes)
                    may_compile = may_compile or changes is None
                    if not may_compile and not self.kept.holds(key):
                        raise self._refused(cause)
                    self._begun[key] = threading.Event()
                    return cause, may_compile
            elsewhere.wait()  # should that fail, this thread tries

    def _refused(self, cause: str) -> RecompileError:
        return RecompileError(
            f'{self.name} would compile again: {cause}. It was made with on_recompile="raise": call warmup with such '
            "sizes and options before, or widen the buckets."
        )

    def _compile(self, key, cause, may_compile, args, weights):
        function, names = self._build(key)
        if (read := self.kept.read(key, names or ())) is not None:
            compiled = _Stateless(read) if names is None else read
            try:
                result = compiled(*args, weights=weights)
                backend.wait_for(result)
            except Exception as error:
                if not lacks_memory(error):  # that says nothing of what was read
                    self.kept.refuse(key)
                raise
            self._compiled[key] = compiled
            return result
        if not may_compile:  # what is kept is not whole
            raise self._refused(cause)
        variables, traces = [*self._variables, *self._more_variables(key)], []

        def traced(*args):  # runs while tracing only
            with self._tracing:
                traces.append(key)
                self.trace_count += 1
                return function(*args)

        compiled = self._jit(traced, variables, names)
        start = time.perf_counter()
        with backend.compiling_anew() if self.kept.keeps(key) else contextlib.nullcontext():
            result = compiled(*args, weights=weights)
        self._compiled[key] = compiled
        assert len(traces) == 1, "one key is one trace"
        record(self.name, "generate", str(key), cause, time.perf_counter() - start)
        self.kept.keep(key, compiled)
        return result

    @staticmethod
    def _jit(function: Callable, variables: Sequence, names: tuple[str, ...] | None) -> "_Stateless | backend.OnState":
        if names is not None:
            return backend.jit_on_state(function, variables, names)
        return _Stateless(backend.jit_on_state(lambda values, *tensors: (values, function(*tensors)), variables, ()))

    def save(self, cache: ExecutableCache) -> dict[Any, bool]:
        """Put all executables into a cache; returns for each key whether it is there now."""
        return self.kept.save(dict(self._compiled), cache)

    def _run_eagerly(self, key, *args):
        function, names = self._build(key)
        if names is None:
            return backend.run_eagerly(function, *args)
        state, *args = args
        values, outputs = backend.run_eagerly(function, {name: state[name] for name in names}, *args)
        for name, value in values.items():
            state.assign(name, value)
        return outputs

    @property
    def keys(self) -> list:
        """What has been compiled, oldest first."""
        return list(self._compiled)

    def _changes(self, key) -> list[tuple[str, Any, Any]] | None:
        """What sets `key` apart from the nearest one of its kind that is compiled, or being compiled, by field.

        None where there is none of its kind.
        """
        others = [other for other in reversed([*self._compiled, *self._begun]) if type(other) is type(key)]

        def changes(other):
            fields = [f.name for f in dataclasses.fields(key)]
            return [(f, getattr(other, f), getattr(key, f)) for f in fields if getattr(other, f) != getattr(key, f)]

        return min(map(changes, others), key=len, default=None)  # of equals, the latest


class _Stateless:
    """An executable that works on no state, and is called without one."""

    def __init__(self, run: backend.OnState):
        self._run, self._state = run, backend.DeviceState({})

    def __call__(self, *args: Any, weights: list | None = None) -> Any:
        return self._run(self._state, *args, weights=weights)

    def keep(self, name: str, cache: ExecutableCache) -> bool:
        """See `OnState.keep`."""
        return self._run.keep(name, cache)


def _told(changes: Sequence[tuple[str, Any, Any]]) -> str:
    labels = {name: f"{name} bucket" for name in ("batch", "cache", "source", "prompt")}
    return ", ".join(f"{labels.get(field, field)} {_show(old)} -> {_show(new)}" for field, old, new in changes)


def _show(value) -> str:
    return "(" + ", ".join(map(str, value)) + ")" if isinstance(value, tuple) else str(value)
