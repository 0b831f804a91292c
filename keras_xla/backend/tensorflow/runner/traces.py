"""The traces of one step, by the structures of the batches that they are for."""

import contextlib
from collections.abc import Callable
from typing import Any

from keras_xla.backend.filled_batch import FilledBatch
from keras_xla.backend.tensorflow.graphs.last_batch import ROWS, fillable
from keras_xla.backend.tensorflow.runner.specs import alike, common, name_of, serves
from keras_xla.backend.tensorflow.runner.trace import Trace


class Traces:
    """Makes each trace when it is first asked for: those that `tf.function(..., reduce_retracing=True)` would make.

    Args:
        step: What is traced, see `Runner`.
        lock: Held while anything changes; it may be taken again by the thread that has it.
        before: See `Runner`.
        filled_step: See `Runner`.
        closed: See `Runner`.

    Attributes:
        made: How many traces were begun so far.
    """

    def __init__(
        self,
        step: Callable,
        lock: contextlib.AbstractContextManager,
        before: Callable | None,
        filled_step: Callable | None,
        closed: Callable[[], contextlib.AbstractContextManager],
    ):
        self._step, self._lock, self._before, self._filled_step = step, lock, before, filled_step
        self._closed = closed
        self._specs: dict[str, Any] = {}
        self._traces: dict[str, Trace] = {}
        self._failed: set[str] = set()  # what could not be traced, which says nothing of other batches
        self._runs = [0]
        self.made = 0

    def key(self, spec: Any) -> str:
        """Names the trace for batches of a structure of `tf.TypeSpec`, which `of` makes where nothing else runs them.

        That is one that is there and fits, or a new one that leaves open whatever differs between this structure and
        those of the same kind before it.
        """
        with self._lock:
            if (key := name_of(spec)) in self._specs:
                return key
            others = {key: known for key, known in self._specs.items() if key not in self._failed}
            for key, known in others.items():
                if alike(known, spec) and serves(known, spec):
                    return key
            for known in others.values():
                if alike(known, spec):
                    spec = common(spec, known)
            key = name_of(spec)
            self._specs.setdefault(key, spec)
            return key

    def of(self, key: str) -> Trace:
        """The trace of a name."""
        with self._lock:
            if key not in self._traces:
                self._failed.add(key)
                self._traces[key] = self._trace(self._specs[key])
                self._failed.discard(key)
            return self._traces[key]

    def _trace(self, spec: Any) -> Trace:
        if self._before is not None:
            self._before(spec)
        filled = self._filled_step(spec) if self._filled_step and fillable(spec) else None
        self.made += 1
        batch = FilledBatch(spec, ROWS) if filled else spec
        return Trace(filled or self._step, batch, self._runs, self._closed)

    def unfilled(self, key: str) -> Trace:
        """Another trace for the same batches, which are not filled up; it is not kept."""
        self.made += 1
        return Trace(self._step, self._specs[key], self._runs, self._closed)
