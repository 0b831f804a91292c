"""The calls of one `tf.function`: counted and timed, then run in both ways in turn, then in the faster one.

Every call is a correct one, so nothing is tried that has to be undone, but for one case: a function of which some runs
beside XLA, and that changes variables, compiles on copies of them. XLA gets the graph that TensorFlow has traced, and
the Python function does not run again. Which trace a call needs, TensorFlow itself is asked every time.
"""

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_xla.backend.memory import lacks_memory
from keras_xla.backend.new_shapes import Calls, TrialImpossible
from keras_xla.backend.signature import Leaf
from keras_xla.backend.tensorflow.checks.find import Checks
from keras_xla.backend.tensorflow.checks.kinds import CHECKED
from keras_xla.backend.tensorflow.graphs.operations import operations
from keras_xla.backend.tensorflow.partial.split import redrawn, runs_in_parts, split
from keras_xla.backend.tensorflow.runner.executable import message_of
from keras_xla.backend.tensorflow.runner.trace import Traced
from keras_xla.backend.tensorflow.runner.trial import clocked, copies_of
from keras_xla.private.tensorflow.graphs import Function, call_with, captures, flat_arguments

SAMPLES = 3  # timed calls in each way
MOST_SHAPES = 32  # of arguments; a function with more is not for XLA
# Without a seed, which refuses a function, nobody can tell how often these have drawn.
_UNSEEDED_RANDOM = {"RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "RandomGamma"}
_STATEFUL_RANDOM = re.compile(r"RngReadAndSkip|RngSkip|NonDeterministicInts|StatefulUniform|StatefulStandardNormal.*")


class FunctionTuner:
    """What is known of one function; `settled` when it runs plainly from now on, without a look.

    `make_policy()` gives, at the first call, the `FunctionPolicy` that is asked.
    """

    def __init__(self, make_policy: Callable[[], Any]):
        self._make_policy = make_policy
        self._policy: Any = None
        self._thread = 0
        self._looking, self._count, self._seconds = False, 0, 0.0
        self._variants: dict[tuple, _Variant] = {}
        self.settled = False

    def call(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Run a call that comes from outside of every graph."""
        plain = functools.partial(Function.__call__, function, *args, **kwargs)
        if self._policy is None:
            self._policy, self._thread = self._make_policy(), threading.get_ident()
        if threading.get_ident() != self._thread:
            return plain()
        if not self._looking:
            self._looking = self._policy.worth_tracing()
        if not self._looking:
            return self._timed(function, plain)
        start = time.perf_counter()
        try:
            variant, arguments = self._variant_of(function, args, kwargs)
        except Exception as error:
            outputs = plain()  # which raises what is wrong with the script
            self._rest(f"it could not be looked into: {error!r}")
            return outputs
        if variant is None:
            if not any(variant.executable for variant in self._variants.values()):
                self._rest(f"its arguments have more than {MOST_SHAPES} different shapes")
            return plain()
        return self._run(variant, plain, arguments, time.perf_counter() - start)

    def _run(self, variant: "_Variant", plain: Callable, arguments: list, looked: float) -> Any:
        if variant.way == "later":
            variant.calls.executables = sum(v.executable is not None for v in self._variants.values())
            variant.way = self._policy.decide(variant.calls)
        if variant.way == "graph":
            self._settle(variant)
            return plain()
        if variant.way == "this":
            return plain()
        if variant.way == "later":
            seconds, outputs = clocked(plain)
            variant.calls.count += 1
            variant.calls.seconds += seconds
            self._policy.ran("graph", seconds)
            return outputs
        start = time.perf_counter()
        if not variant.takes(arguments):
            return plain()
        looked += time.perf_counter() - start
        if variant.executable is None:
            return self._compile(variant, plain, arguments)
        executable = functools.partial(variant.executable, arguments)
        if variant.way == "xla":
            seconds, outputs = clocked(executable, wait=False)
            self._policy.ran("xla", seconds + looked)
            if self._policy.compiles_too_often(variant.calls, seconds):
                self._settle(variant)
            return outputs
        return self._measure(variant, plain, executable, looked)

    def _compile(self, variant: "_Variant", plain: Callable, arguments: list) -> Any:
        start = time.perf_counter()
        try:
            executable = variant.build()
            variant.try_out(executable, arguments)
            _, outputs = clocked(lambda: executable(arguments))
        except Exception as error:
            outputs = plain()  # which raises what is wrong with the script
            self._settle(variant)
            self._policy.failed(variant.calls, message_of(error), not lacks_memory(error))
            return outputs
        variant.executable, variant.first = executable, time.perf_counter() - start
        self._policy.compiled(variant.calls, variant.first)
        return outputs

    def _measure(self, variant: "_Variant", plain: Callable, executable: Callable, looked: float) -> Any:
        times = variant.times
        way = "xla" if len(times["xla"]) == len(times["graph"]) else "graph"
        seconds, outputs = clocked(executable if way == "xla" else plain)
        if way == "xla":
            seconds += looked  # once it is decided, the plain graph runs without a look
        times[way].append(seconds)
        self._policy.ran(way, seconds)
        if len(times["graph"]) == SAMPLES:
            variant.way = self._policy.measured(variant.calls, times["graph"], variant.first, times["xla"])
            if variant.way == "graph":
                self._settle(variant)
        return outputs

    def _timed(self, function: Any, plain: Callable) -> Any:
        traces = function.experimental_get_tracing_count()
        seconds, outputs = clocked(plain, wait=False)
        if function.experimental_get_tracing_count() == traces:
            self._policy.ran("graph", seconds)
            self._count, self._seconds = self._count + 1, self._seconds + seconds
        return outputs

    def _settle(self, variant: "_Variant") -> None:
        """Run these arguments plainly from now on; and all, unless others run through XLA."""
        variant.way, variant.executable = "this", None
        if not any(other.way == "xla" for other in self._variants.values()):
            self.settled, self._variants = True, {}

    def _rest(self, reason: str) -> None:
        self.settled, self._variants = True, {}
        self._policy.failed(None, reason)

    def _variant_of(self, function: Any, args, kwargs) -> tuple["_Variant | None", list]:
        """The variant for these arguments, and those flat; a new one is noted. None if there are too many already."""
        concrete = function.get_concrete_function(*args, **kwargs)
        arguments = [tf.convert_to_tensor(x) for x in flat_arguments(function, concrete, args, kwargs)]
        key = (concrete, *(tuple(x.shape) for x in arguments))
        variant = self._variants.get(key)
        if variant is None:
            if len(self._variants) == MOST_SHAPES:
                return None, arguments
            variant = self._variants[key] = _Variant(concrete, arguments)
            if len(self._variants) == 1:  # the calls before were like this one, as a rule
                variant.calls.count, variant.calls.seconds = self._count, self._seconds
        return variant, arguments


class _Variant:
    """A trace for arguments of fixed shapes."""

    def __init__(self, concrete, arguments: list[tf.Tensor]):
        self.trace = Traced(concrete)
        self.specs = [tf.TensorSpec(x.shape, x.dtype) for x in arguments]
        names = [x.op.name for x in concrete.inputs[: len(arguments)]]
        leaves = tuple(Leaf(name, tuple(x.shape), x.dtype.name) for name, x in zip(names, arguments, strict=True))
        self.calls = Calls(self.trace.facts, _refusal(self, arguments), leaves)
        self.way, self.first = "later", 0.0
        self.executable: Callable | None = None
        self.times: dict[str, list[float]] = {"graph": [], "xla": []}

    @functools.cached_property
    def checks(self) -> Checks:
        return Checks(self.trace.concrete, self.specs)

    def late(self) -> str:
        """The kinds of the operations in it that check what is not known before it runs."""
        graph = self.trace.concrete.graph
        if not any(op.type in CHECKED for op in operations(graph)):
            return ""
        return ", ".join(sorted({graph.get_operation_by_name(name).type for name in self.checks.late}))

    def build(self) -> Callable:
        """A function of the flat arguments that XLA compiles in its first call."""
        function = tf.function(split(self.checks), autograph=False)
        return function.get_concrete_function(self.specs)

    def try_out(self, executable: Any, arguments: list[tf.Tensor]) -> None:
        """Compile, on copies of the variables, what XLA may fail at when other parts have changed them."""
        changed, lasting = self.trace.changed, set(self.trace.facts.unsafe) - _UNSEEDED_RANDOM
        if changed and not lasting and runs_in_parts(self.checks):
            with contextlib.suppress(TrialImpossible):  # there is no memory for them: nor was there a need before
                copies = copies_of(changed)
                call_with(executable, (arguments,), {key: copy.handle for key, copy in copies.items()})

    def takes(self, arguments: list[tf.Tensor]) -> bool:
        """Whether these are arguments for which nothing in it raises; the plain function tells of others."""
        return self._ok is None or bool(self._ok(arguments))

    @functools.cached_property
    def _ok(self) -> Callable | None:
        predicate = tf.function(self.checks.predicate, autograph=False)
        return predicate.get_concrete_function(self.specs) if self.checks.early else None


def _refusal(variant: _Variant, arguments: list[tf.Tensor]) -> str:
    """Why XLA must not run it, in words."""
    trace = variant.trace
    graph = trace.concrete.graph
    if trace.facts.blocked:
        places = sorted({f" ({blocker.where})" for blocker in trace.blockers if blocker.where})
        return f"XLA cannot compile {', '.join(trace.facts.blocked)}{''.join(places[:1])}"
    if any(x.dtype in (tf.resource, tf.variant) for x in arguments):
        return "its arguments are not only tensors, but variables, datasets or the like"
    if len(captures(graph)) != len(trace.concrete.captured_inputs):
        return "it looks up values from outside at every call"
    for op in operations(graph):
        if "TensorList" in op.type:
            return f"it builds lists of tensors ({op.type}), whose sizes XLA gets wrong if they grow"
        if _STATEFUL_RANDOM.match(op.type):
            return "it draws from a tf.random.Generator, whose numbers would be others"
        if "seed2" in op.node_def.attr and (op.get_attr("seed") or op.get_attr("seed2")):
            return "it draws seeded random numbers (tf.random.set_seed), which would begin again"
    if late := variant.late():
        return f"it checks values ({late}), which XLA leaves out"
    if trace.facts.random and (kinds := redrawn(variant.checks)):
        return f"XLA would draw other random numbers ({', '.join(kinds)})"
    return ""
