"""Runs the train and test steps of a model on JAX: several at a time where that may be, else in Keras' function."""

import dataclasses
import functools
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from keras_xla.backend.execution import SEVERAL_STEPS, Execution
from keras_xla.backend.jax.batches import leaves_of
from keras_xla.backend.jax.step_loop import CannotLoop, StepLoop
from keras_xla.backend.jax.untracked import as_lists, is_untracked, untracked

GROUP_STEPS, GROUP_BYTES = 64, 2**23  # steps in one call, and the batches for them: longer steps need no loop
READ_SECONDS = 0.1  # for which batches are read before the steps of the first of them run
_OFF = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks")  # each wants single steps


class Runner:
    """One kind of step of one model.

    Args:
        step: `step(state, batch) -> (logs, state)`: the model's `train_step`, say.
        keras_function: Keras' own, `(state, iterator) -> (logs, state)`, which runs one step.
        fill: `fill()`, called as a pass over data begins, gives what fills its smaller batches up, or None.
        compiled: `compiled(leaves, seconds, what)` is told of every loop, with the leaves of its batches.
        least: What `steps_per_execution` asks for: how many steps each call is for, unless the data end.
        layers: Gives all layers of the model.
    """

    gathers_rows = False  # arrays that are changed in place are seen by Keras' pipeline here: it reads all batches
    first_steps = 2  # to be asked for while nobody knows how long a step takes, so that what compiles is the loop
    frees_slowly = False

    def __init__(
        self,
        step: Callable,
        keras_function: Callable,
        fill: Callable,
        compiled: Callable,
        least: int,
        layers: Callable,
    ):
        self._step, self._keras, self._fill, self._least, self._layers = step, keras_function, fill, least, layers
        self._compiled = compiled
        self._loops: dict[Any, StepLoop | None] = {}  # by what batches are like; None where steps do not fit into one
        self._passes: weakref.WeakKeyDictionary[Iterator, _Pass] = weakref.WeakKeyDictionary()

    def run(self, state: Any, iterator: Iterator, count: int = 1) -> Execution:
        """Run steps on the next batches of an iterator, at most `count`; if that is more than one, some are read ahead.

        `state` is as Keras' trainer has it; its arrays are used up. The outputs are the logs of the last step and the
        state after it. Raises `StopIteration` if there is no batch left.
        """
        made = self._group(as_lists(state), iterator, count)
        while made.batches < self._least:
            try:
                more = self._group(made.outputs[1], iterator, count - made.batches)
            except StopIteration:
                break
            settled = made.settled and more.settled
            made = dataclasses.replace(more, batches=made.batches + more.batches, settled=settled)
        if count > self._least or is_untracked(state):  # so it is Keras' loop that asks, and nobody else
            logs, state = made.outputs
            made = dataclasses.replace(made, outputs=(logs, untracked(state)))
        return made

    def _group(self, state: Any, iterator: Iterator, count: int) -> Execution:
        """Run steps on batches of one kind, as many as come now."""
        this = self._pass_of(iterator)
        first = this.next(iterator)
        kind = _kind(first)
        loop = self._loop(kind, first, count)
        if loop is None or this.refused[kind] > 1:  # a state of weak types may be one of usual types after a step
            return self._one(state, first)
        # Whoever makes batches in Python may put each into the same memory: what comes next is read behind a copy.
        copy = _copied if 1 < count <= self._least else lambda batch: batch
        first = copy(first)
        batches = [first, *map(copy, this.more(iterator, kind, min(count, loop.capacity) - 1))]
        traces, start = loop.traces, time.perf_counter()
        try:
            outputs = loop(state, batches)
        except Exception as error:  # of a step that does not fit into a loop, or of one that fails: Keras tells
            if any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(state)):
                raise
            this.put_back(batches[1:])
            made = self._one(state, first)
            if not isinstance(error, CannotLoop) or loop.traces > traces:
                self._loops[kind] = None
            this.refused[kind] += 1
            return made
        if traced := loop.traces > traces:
            self._compiled(leaves_of(first), time.perf_counter() - start, SEVERAL_STEPS)
        wait = functools.partial(jax.block_until_ready, outputs[0])
        return Execution(outputs, len(batches), "xla", not traced, wait)

    def _one(self, state: Any, batch: Any) -> Execution:
        return Execution(self._keras(state, iter([batch])), 1, "xla", settled=False)

    def _loop(self, kind: Any, batch: Any, count: int) -> StepLoop | None:
        """What runs batches of a kind; None for Keras' own function."""
        if kind is None or keras.distribution.distribution() is not None or any(getattr(jax.config, x) for x in _OFF):
            return None
        if count > 1 and kind not in self._loops:
            size = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for shape, dtype in kind[1])
            most = GROUP_STEPS if self._least == 1 else min(GROUP_STEPS, self._least)
            capacity = min(most, GROUP_BYTES // max(size, 1))
            slow = jax.default_backend() == "cpu" and any("Conv" in type(x).__name__ for x in self._layers())
            self._loops[kind] = StepLoop(self._step, capacity) if capacity > 1 and not slow else None
        return self._loops.get(kind)

    def _pass_of(self, iterator: Iterator) -> "_Pass":
        try:
            this = self._passes.get(iterator)
            if this is None:
                this = self._passes[iterator] = _Pass(self._fill())
        except TypeError:  # one that nobody can refer to weakly; none of Keras'
            this = _Pass(None, ahead=False)
        return this


class _Pass:
    """What is known of an iterator: what was read of it, and is still to be run. It does not keep the iterator."""

    def __init__(self, fill: Callable | None, ahead: bool = True):
        self._fill, self._ahead = fill, ahead
        self._read: deque = deque()
        self.refused: Counter[Any] = Counter()  # by kinds of batches, how often they did not fit into their loop

    def next(self, iterator: Iterator) -> Any:
        """The next batch; raises `StopIteration` if there is none."""
        if self._read:
            item = self._read.popleft()
            if isinstance(item, Exception):
                raise item
            return item
        batch = next(iterator)
        return batch if self._fill is None else self._fill(batch)

    def more(self, iterator: Iterator, kind: Any, count: int) -> Iterator:
        """Batches of the same kind that come now, up to so many; an error is one for the step behind them."""
        start = time.perf_counter()
        while self._ahead and count > 0 and time.perf_counter() - start < READ_SECONDS:
            try:
                batch = self.next(iterator)
            except StopIteration:
                break
            except Exception as error:
                self._read.appendleft(error)
                break
            if _kind(batch) != kind:
                self._read.appendleft(batch)
                break
            count -= 1
            yield batch

    def put_back(self, batches: list) -> None:
        """Have these run next."""
        self._read.extendleft(reversed(batches))


def _copied(batch: Any) -> Any:
    return jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, batch)


def _kind(batch: Any) -> tuple | None:
    """Structure, shapes and dtypes of a batch of dense arrays of numbers; None of another one."""
    if not all(isinstance(x, np.ndarray | np.generic | jax.Array | None) for x in keras.tree.flatten(batch)):
        return None
    leaves, structure = jax.tree.flatten(batch)
    if not leaves or any(x.dtype.kind in "OSUMm" for x in leaves):
        return None
    return structure, tuple((x.shape, x.dtype) for x in leaves)
