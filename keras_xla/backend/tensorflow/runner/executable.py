"""One way to run one trace: timed in a trial that changes no variable, and known to have compiled."""

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_xla.backend.memory import lacks_memory
from keras_xla.backend.new_shapes import ShapesRefused, Timing, TrialImpossible, WayFailed
from keras_xla.backend.tensorflow.graphs.error_lines import with_lines
from keras_xla.backend.tensorflow.graphs.graph import leaves_of
from keras_xla.backend.tensorflow.graphs.last_batch import Shapes, filling
from keras_xla.backend.tensorflow.partial.split import NotSplittable
from keras_xla.backend.tensorflow.runner.loops import loop, rows_loop
from keras_xla.backend.tensorflow.runner.sources import Batches
from keras_xla.backend.tensorflow.runner.trace import Trace
from keras_xla.backend.tensorflow.runner.trial import copies_of, timed_runs
from keras_xla.backend.tensorflow.runner.ways import in_parts, make, redrawn_in
from keras_xla.backend.tensorflow.stored_calls import in_another_folder, stored_calls
from keras_xla.private.tensorflow.graphs import call_with, unrecorded

STEPS_AT_ONCE = 2  # that see nothing of each other: more of them would need more memory
_NOT_THE_MESSAGE = ("Graph execution error", "Detected at", "<stack traces", "  ", "File ")
_NODE = re.compile(r"Detected at node '?([^\s']+)'? defined|\{\{node ([^}]+)\}\}|node `([^`]+)`")
_OF_XLA = (
    tf.errors.InvalidArgumentError,
    tf.errors.UnimplementedError,
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
)


class _CopiedHandles(threading.local):
    """Handles of copies, by the ids of the handles that they stand for; None outside of a trial."""

    copies: dict[int, tf.Tensor] | None = None


class Executable:
    """A trace run in one way (`"graph"`, `"xla"` or `"partial"`), for batches of these shapes only; None for any.

    `compiled(seconds)` is called once, after the run that compiled; never for `"graph"`.
    """

    def __init__(self, trace: Trace, way: str, shapes: Shapes | None, compiled: Callable[[float], None]):
        self.trace, self.way, self.shapes = trace, way, shapes
        self._told = compiled if way != "graph" else None
        self._calls = None if way == "graph" else stored_calls()
        self._lock = threading.RLock()
        self._trial = _CopiedHandles()
        self._loops: dict[tuple[bool, bool, str], Callable] = {}
        self._row_loops: dict[tuple[bool, int], Callable] = {}
        self.instead: Any = None  # `Callable[[WayFailed, Callable], Executable]`, once it was decided on

    @property
    def _taken(self) -> Shapes | None:
        """The shapes with that of the number of rows, where the trace takes one."""
        return (*self.shapes, ()) if self.shapes is not None and self.trace.fills else self.shapes

    @functools.cached_property
    def _step(self) -> Callable:
        step = make(self.trace, self.way, self._taken, self._calls)
        return filling(step, self.shapes) if self.shapes is not None and self.trace.fills else step

    @functools.cached_property
    def _one(self) -> Callable:
        return self._step if self.way == "graph" else tf.function(self._step, autograph=False)

    @functools.cached_property
    def early(self) -> Callable[[Any], tf.Tensor] | None:
        """`ok(batch) -> a scalar bool`: whether its values are such that plain TensorFlow does not raise.

        To be called in a `tf.function`, for batches that have the shapes, or can be filled up to them where the trace
        fills. None if there is nothing to look at.
        """
        if self._checked is None or not (checks := self.trace.checks(self._checked)).early:
            return None

        def ok(batch):
            return checks.predicate(leaves_of(batch))

        return filling(ok, self.shapes) if self.shapes is not None and self.trace.fills else ok

    @functools.cached_property
    def _holds(self) -> Callable | None:
        return None if self.early is None else tf.function(self.early, autograph=False)

    @property
    def untried(self) -> bool:
        """Whether its next run is the first one, which compiles, and may fail at that."""
        return self._told is not None

    @property
    def _checked(self) -> Shapes | None:
        """What it takes if XLA runs it, which checks nothing; else None."""
        return None if self.way == "graph" else self._taken

    @functools.cached_property
    def stops(self) -> bool:
        """Whether a check of plain TensorFlow's within the step may stop it."""
        if self._checked is None:
            return False
        try:
            return bool(self.trace.checks(self._checked).late)
        except ValueError:  # for these shapes it cannot be traced, as its first run will find
            return False

    @functools.cached_property
    def _redrawn(self) -> list[str]:
        return redrawn_in(self.trace, self.way, self._taken)

    def feed(self, source: Batches, iterator, count: int, pending, joined: bool = False) -> tuple[list, int, Any]:
        """Run `pending`, if it holds a batch, and then what the iterator gives; see `loops.loop`.

        The first run is of one batch, so that what fails is XLA, not the data, and no batch is run twice or lost.
        """
        if self._told is None or count == 1 or joined:
            return self._feed(source, iterator, 1 if self._told else count, pending, joined)
        outputs, ran, pending = self._feed(source, iterator, 1, pending, joined)
        if ran:
            others, more, pending = self._feed(source, iterator, count - 1, pending, joined)
            outputs, ran = (others if more else outputs), ran + more
        return outputs, ran, pending

    def holds(self, batch: Any) -> bool:
        """Whether `run` may be given a batch: it has no value for which plain TensorFlow raises."""
        try:
            return self._holds is None or bool(self._holds(batch))
        except ValueError:  # nor has it shapes that the step could be traced for
            return False

    def run(self, batch) -> Any:
        """Run one batch."""

        def run():
            traces = self._trial.copies is not None and self.way != "graph"
            return self._call(self._one.get_concrete_function(batch) if traces else self._one, batch)

        return self._run(run)

    def rows(self, tensors: Sequence[tf.Tensor], size: int, first: int, count: int, joined: bool) -> tuple[list, int]:
        """Run `count` batches of `size` rows of arrays, from row `first` on; see `loops.rows_loop`.

        The first run is of one batch, as in `feed`. Where no step leaves anything behind, some run at once: small ones
        do not keep all cores busy.
        """
        count = 1 if self.untried else count
        if self.at_once > 1:
            with contextlib.suppress(tf.errors.OpError):
                return self._rows(tensors, size, first, count, joined, self.at_once)
        made = self._rows(tensors, size, first, count, joined, 1)  # raises what the first bad batch does
        self.at_once = 1  # there was no memory for more
        return made

    def _rows(self, tensors, size: int, first: int, count: int, joined: bool, at_once: int) -> tuple[list, int]:
        def run():
            if (joined, at_once) not in self._row_loops:
                # No two turns of a loop call XLA at once, as a call of it counts as an effect: so one turn has several.
                turn = dict(width=at_once) if self.way == "xla" else dict(parallel=at_once)
                made = rows_loop(self.trace, self._step, self.shapes, joined, self.early, **turn)
                number = tf.TensorSpec([], tf.int32)
                rows = self._specs_of(tensors)
                self._row_loops[joined, at_once] = made.get_concrete_function(rows, number, number, number)
            numbers = map(tf.constant, (size, first, count))
            return self._call(self._row_loops[joined, at_once], list(tensors), *numbers)

        outputs, ran = self._run(self._unrecorded(run), lambda made: int(made[1]) > 0)
        return outputs, int(ran)

    @functools.cached_property
    def at_once(self) -> int:
        """How many steps over rows run at once: one, where one could see what another has done, or on a GPU."""
        facts = self.trace.facts
        alone = self.trace.changed or facts.unsafe or facts.random or facts.device != "CPU"
        return 1 if alone else STEPS_AT_ONCE

    def trial(self, run: Callable[[], int], repeats: int, limit: float) -> Timing:
        """Time `run`, which runs batches through `feed`, `run` or `rows`, on copies of variables; see `timed_runs`.

        Raises `WayFailed` if XLA cannot compile it, fails, or would draw other random numbers; `TrialImpossible` if
        there is no memory for a trial, or the plain graph failed. The step is to be run plainly then: it raises what it
        raises in plain Keras, or nothing, as a trial runs the batch several times.
        """
        try:
            if self._redrawn:
                raise WayFailed(f"XLA would draw other random numbers: {', '.join(self._redrawn)}")
            with self.on_copies():
                return timed_runs(run, repeats, limit)
        except TrialImpossible:
            raise
        except Exception as error:
            if self.way == "graph":
                raise TrialImpossible(f"the plain graph failed in a trial: {message_of(error)}") from error
            failed = error if isinstance(error, WayFailed) else failure(error)
            failed.lasting &= not lacks_memory(error.__cause__ or error)
            raise failed from error.__cause__ or error

    @contextlib.contextmanager
    def on_copies(self) -> Iterator[None]:
        """Within it, what this thread runs reads and writes copies of the variables that the step may write.

        So a trial is seen by nobody, and nothing that another thread or Ctrl-C does meanwhile gets lost. Raises
        `TrialImpossible` if there is no memory for them.
        """
        copies = copies_of(self.trace.changed)
        self._trial.copies = {key: copy.handle for key, copy in copies.items()}
        try:
            yield
        finally:
            self._trial.copies = None
            del copies  # their handles are good for as long as these live

    def _call(self, function: Callable, *args: Any) -> Any:
        copies = self._trial.copies
        if copies is not None:
            return call_with(function, args, copies)
        made = function(*args)
        self.trace.runs[0] += 1
        return made

    def _unrecorded(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """`run` for a loop: a tape would make a gradient of it, which TensorFlow cannot. None goes through its batches.

        The step itself may have a tape of its own, and may have to be traced again: that is done before.
        """

        def run_loop():
            _ = self._step
            with unrecorded():
                return run()

        return run_loop

    def _feed(self, source: Batches, iterator, count: int, pending, joined: bool) -> tuple[list, int, Any]:
        def run():
            kind = source.gathers, joined, repr(iterator.element_spec)
            if kind not in self._loops:
                made = loop(self.trace, self._step, self.shapes, source, joined, self.early)
                rows = self._specs_of(source.tensors)
                self._loops[kind] = made.get_concrete_function(iterator, tf.TensorSpec([], tf.int32), pending, rows)
            return self._call(self._loops[kind], iterator, tf.constant(count), pending, source.tensors)

        outputs, ran, pending = self._run(self._unrecorded(run), lambda made: int(made[1]) > 0)
        return outputs, int(ran), pending

    def _specs_of(self, arrays: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
        """For any number of rows; in the plain graph, which is one for all shapes, for any size that is open there."""
        known = leaves_of(self.trace.spec) if arrays and self.way == "graph" else arrays
        return [tf.TensorSpec([None, *of.shape[1:]], x.dtype) for of, x in zip(known, arrays, strict=True)]

    def _run(self, call: Callable[[], Any], compiled: Callable[[Any], bool] = lambda _: True) -> Any:
        try:
            return self._run_or_compile(call, compiled)
        except tf.errors.OpError as error:
            told = with_lines(error, self.trace.concrete.graph)
            if told is error:
                raise
            raise told from None

    def _run_or_compile(self, call: Callable[[], Any], compiled: Callable[[Any], bool]) -> Any:
        if not self.untried:
            return call()
        with self._lock:  # another thread may be compiling it
            if not self.untried:
                return call()
            start = time.perf_counter()
            try:
                outputs = self._first(call)
            except ValueError as error:  # while it was traced, for shapes that do not fit
                raise ShapesRefused(str(error)) from error
            if compiled(outputs) and (told := self._told) is not None:  # else the batch was not for it
                if self._calls is not None:
                    self._calls.take_over()
                self._told = None
                told(time.perf_counter() - start)
            return outputs

    def _first(self, call: Callable[[], Any]) -> Any:
        """The first run. If it fails where executables are kept on disk, the step is traced again without them.

        A step that is one executable then runs once more, as nothing has run before that failed. So a file that is of
        no use, or a full disk, costs no more than time.
        """
        calls = self._calls
        try:
            with way_may_fail():
                return call()
        except (WayFailed, tf.errors.OpError) as failed:  # of a file that it cannot read, TensorFlow says many things
            cause = failed.__cause__ if isinstance(failed, WayFailed) else failed
            from_disk = [] if calls is None else calls.take_back()
            if calls is None or not isinstance(cause, tf.errors.OpError):
                raise
            self._trace_again()
            if lacks_memory(cause) or not (in_another_folder(cause) or from_disk):
                raise
            if in_parts(self.trace, self.way, self._taken):  # of which some may have run
                for each in from_disk:
                    each.drop()
                if from_disk and cause is failed:  # which Keras would take for something else
                    raise failure(cause) from cause
                raise
        except Exception:
            if calls is not None:
                calls.take_back()
            raise
        with way_may_fail():
            outputs = call()
        for each in from_disk:
            each.drop()
        return outputs

    def _trace_again(self) -> None:
        """Forget the graphs, which call functions by the names that they have on disk."""
        self._calls = None
        self._loops.clear()
        self._row_loops.clear()
        for name in ("_step", "_one"):
            vars(self).pop(name, None)


@contextlib.contextmanager
def way_may_fail() -> Iterator[None]:
    """Raise `WayFailed` where a step cannot be split, or XLA cannot compile it."""
    try:
        yield
    except NotSplittable as error:
        raise WayFailed(str(error), error.node) from error
    except _OF_XLA as error:
        raise failure(error) from error


def failure(error: Exception) -> WayFailed:
    """What TensorFlow says about XLA, with the operation that it is about."""
    message, found = message_of(error), _NODE.search(str(getattr(error, "message", error)))
    node = next(filter(None, found.groups())) if found else ""
    return WayFailed(message if node in message else f"{message} [{node}]", node)


def message_of(error: Exception) -> str:
    """The line that says what is wrong; TensorFlow puts others in front of it."""
    lines = str(getattr(error, "message", error)).splitlines()
    told = [line for line in lines if line.strip() and not line.startswith(_NOT_THE_MESSAGE)]
    return (told or [repr(error)])[0].strip()[:300]
