"""Step functions that run through XLA by the policy and write every compilation to the compile log."""

import inspect
import threading
import warnings
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend import keras2
from keras_xla.backend.compile_log import record
from keras_xla.backend.signature import Leaf, batch_names, describe, describe_change
from keras_xla.backend.steps import is_distributed, is_mirrored, runs_eagerly, watched_step
from keras_xla.training.decide.decisions import decisions
from keras_xla.training.decide.policy import Policy
from keras_xla.training.reports.journal import ADVICE, KINDS, MANY, Journal
from keras_xla.training.session import Pace, flat, watched
from keras_xla.training.steps.array_rows import Feed, without_pipeline
from keras_xla.training.steps.arrays import Rows, capped, evaluate_arrays, filled_up, predict_arrays, takes
from keras_xla.training.steps.last_batch import filled_step, filling, stop_filling
from keras_xla.training.steps.predict_groups import Going, predict_stream
from keras_xla.training.steps.replicas import prepare, replicas_function, restore
from keras_xla.training.steps.run_ahead import Driver, PredictDriver

_CACHED = "_use_cached_eval_dataset"  # what Keras' fit passes to its evaluate
CALLS = {"train": "fit", "test": "evaluate", "predict": "predict"}


class StepObserver:
    """Builds the step functions of one model instance; lives on the instance, so that its class stays plain Keras.

    Attributes:
        jit_compile: True or `"auto"`.
        journal: What was decided and how it ran.
    """

    def __init__(self, model: keras.Model, jit_compile: bool | str):
        self._model, self.jit_compile = model, jit_compile
        self.journal = Journal()
        self._compiled_kinds: set[str] = set()
        self._thread = _Thread()
        self._asked: dict[str, tuple] = {}
        self._held: tuple[list, Rows | None] = [], None
        self._predicting = Going()

    def make_train_function(self, force: bool = False):
        """In place of `Model.make_train_function`."""
        return self._make("train", force)

    def make_test_function(self, force: bool = False):
        """In place of `Model.make_test_function`."""
        return self._make("test", force)

    def make_predict_function(self, force: bool = False):
        """In place of `Model.make_predict_function`."""
        return self._make("predict", force)

    def fit(self, *args, **kwargs):
        """In place of `Model.fit`."""
        return self._call("train", args, kwargs)

    def evaluate(self, *args, **kwargs):
        """In place of `Model.evaluate`."""
        return self._call("test", args, kwargs)

    def predict(self, *args, **kwargs):
        """In place of `Model.predict`."""
        with self._predicting:
            return self._call("predict", args, kwargs)

    def compile(self, *args, **kwargs):
        """In place of `Model.compile`: from now on the model is what its owner makes of it."""
        uninstall(self._model)
        return self._model.compile(*args, **kwargs)

    def follow(self, kind: str, pace: Pace) -> None:
        """Let this tell how many steps are to come."""
        self._paces[kind] = pace

    @property
    def _paces(self) -> dict[str, Pace]:
        return self._thread.paces

    def _call(self, kind: str, args, kwargs):
        method = getattr(type(self._model), CALLS[kind])
        signature = inspect.signature(method)
        try:
            bound = signature.bind(self._model, *args, **kwargs)
        except TypeError:
            return method(self._model, *args, **kwargs)  # which says what is wrong
        if "callbacks" not in signature.parameters:  # a method of the user's own
            return method(self._model, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        ahead = self.jit_compile == "auto" and not watched(callbacks, kind)
        outer = self._paces.get("train")
        pace = Pace(kind, ahead, bound.arguments.get("steps"), outer.epochs if outer and kind == "test" else 1)
        if not hasattr(callbacks, "callbacks"):
            bound.arguments["callbacks"] = [*flat(callbacks), pace]
        elif kind == "train":
            pace.ahead = False  # a CallbackList made elsewhere does not tell when an epoch begins
        pace.begin()
        policy, runner = self._asked.get(kind, (None, None))
        if runner is not None and policy.wants_again():
            runner.reconsider()
        before = self._paces.get(kind)
        self._paces[kind] = pace
        try:
            if kind == "predict" and method is keras.Model.predict and not watched(callbacks, kind):
                return self._predict(bound, pace)
            if kind == "test" and method is keras.Model.evaluate and ahead:
                return self._evaluate(bound, pace)
            if kind == "train" and method is keras.Model.fit and pace.ahead:
                return self._fit(bound, pace)
            return method(*bound.args, **bound.kwargs)
        finally:
            driver = getattr(self._model, f"{kind}_function")
            if isinstance(driver, Driver):
                driver.let_go()
            self._paces.pop(kind)
            if kind == "train":
                self._held = [], None
            if before is not None:
                self._paces[kind] = before

    def _predict(self, bound: inspect.BoundArguments, pace: Pace):
        bound.apply_defaults()
        named = {name: value for name, value in bound.arguments.items() if name != "self"}
        rows = None
        auto, plain = self.jit_compile == "auto", not hasattr(named["callbacks"], "callbacks")
        driver = self._make("predict", False) if plain else None
        if plain and takes(named["x"], steps=named["steps"]):
            if auto and isinstance(driver, PredictDriver):
                return predict_arrays(self._model, driver, pace, **named)
            if self._model.jit_compile and not is_mirrored(self._model):  # replicas may differ in moving statistics
                named["x"], rows = filled_up(self._model, named["x"], named["batch_size"])
        elif auto and isinstance(driver, PredictDriver) and not capped():
            stream = driver.runner.stream_of(named["x"])
            if stream is not None:
                return predict_stream(self._model, pace, self._predicting, stream, named)
        outputs = type(self._model).predict(self._model, **named)
        return outputs if rows is None else keras.tree.map_structure(lambda array: array[:rows], outputs)

    def _evaluate(self, bound: inspect.BoundArguments, pace: Pace):
        given = {name: value for name, value in bound.arguments.items() if name not in ("self", "kwargs")}
        extra = bound.arguments.get("kwargs", {})
        x, y, weights, size, steps = map(given.get, ("x", "y", "sample_weight", "batch_size", "steps"))
        driver = self._make("test", False)
        several = weights is not None and (keras.tree.is_nested(y) or keras.tree.is_nested(weights))
        if several or extra.keys() - {_CACHED} or not isinstance(driver, Driver) or driver.steps > 1:
            return type(self._model).evaluate(self._model, **given, **extra)
        if not takes(x, y, weights, steps=steps):
            return type(self._model).evaluate(self._model, **given, **extra)
        rows = self._rows_of(x, y, weights, size)
        pace.steps = rows.steps
        shown = {name: given[name] for name in ("verbose", "callbacks", "return_dict") if name in given}
        return evaluate_arrays(self._model, driver, pace, rows, **shown)

    def _fit(self, bound: inspect.BoundArguments, pace: Pace):
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name != "self"}
        driver = self._make("train", False)
        if isinstance(driver, Driver) and driver.steps == 1 and (fed := without_pipeline(given)):
            rows, given = fed
            pace.feed = Feed(rows, given["shuffle"])
        return type(self._model).fit(self._model, **given)

    def _rows_of(self, *given) -> Rows:
        """The tensors of validation data are made once in a fit."""
        if "train" not in self._paces:
            return Rows(*given)
        leaves = keras.tree.flatten(given)
        if len(leaves) != len(self._held[0]) or any(a is not b for a, b in zip(leaves, self._held[0], strict=True)):
            self._held = leaves, Rows(*given)
        return self._held[1]

    def _make(self, kind: str, force: bool):
        model, attribute, method = self._model, f"{kind}_function", f"make_{kind}_function"
        if getattr(model, attribute) is not None and not force:
            return getattr(model, attribute)
        if model.run_eagerly or runs_eagerly() or (self.jit_compile is True and not model.jit_compile):
            return getattr(type(model), method)(model, force=True)

        def keras_make():
            getattr(type(model), method)(model, force=True)
            return getattr(model, attribute)

        own = getattr(type(model), method) is not getattr(keras2.model_class(model), method)
        name = f"{model.name}.{kind}_step"
        ledger = Ledger(name, kind, self._first_cause(kind), self._compiled_kinds, self.journal)
        policy = Policy(model, kind, self.jit_compile, decisions(), self.journal, lambda: self._paces.get(kind))
        runner = None
        if not own and not is_distributed(model):
            answers = policy.decide, ledger.compiled, policy.failed, policy.again
            runner = keras2.runner_of(model, kind, batch_names, *answers)
        elif is_mirrored(model) and not keras2.is_keras2(model):
            runner, function = replicas_function(model, kind, own, policy, ledger.saw, keras_make)
            self._asked[kind] = policy, runner
            setattr(model, attribute, function)
            return function
        self._asked[kind] = policy, runner
        if runner is None and not model.jit_compile:  # "auto" of Keras' own, under a strategy
            return keras_make()
        if runner is None:

            def make():
                return watched_step(kind, keras_make, own, batch_names, ledger.saw)

            fill = backend.name == "jax" and kind != "predict" and not own
            function = filling(model, kind, make) if fill else make()
        elif kind == "predict":
            function = PredictDriver(runner, lambda: self._paces.get(kind), self.journal)
        else:
            steps = keras2.steps_per_execution(model)
            if self.jit_compile is True and not keras2.is_keras2(model):
                runner.filled_step = filled_step(model, kind)
            function = Driver(runner, kind, steps, lambda: self._paces.get(kind), self.journal)
        setattr(model, attribute, function)
        return function

    def _first_cause(self, kind: str) -> str:
        return "model recompiled" if kind in self._compiled_kinds else "first call"


class _Thread(threading.local):
    """The calls that are going on in this thread."""

    def __init__(self):
        self.paces: dict[str, Pace] = {}


class Ledger:
    """What one step function has compiled so far; writes what is new to the compile log."""

    def __init__(self, name: str, kind: str, first_cause: str, compiled_kinds: set[str], journal: Journal):
        self._name, self._kind, self._cause = name, kind, first_cause
        self._compiled_kinds, self._journal = compiled_kinds, journal
        self._seen: set[tuple] = set()
        self._last: tuple | None = None
        self._events = 0
        self._lock = threading.Lock()

    def compiled(self, leaves: tuple[tuple, ...], seconds: float, way: str) -> None:
        """Take note of a new executable for batches of `(name, shape, dtype)` leaves."""
        self.saw([(way, leaves)], seconds, compiled=True)

    def saw(self, batches: list[tuple[str, Any]], seconds: float, compiled: bool = False) -> None:
        """Take note of the batches of one execution.

        Args:
            batches: For each batch the trace that ran it and its `(name, shape, dtype)` leaves.
            seconds: Wall-clock seconds of the execution; shared equally by what it compiled.
            compiled: Whether each batch is known to have compiled; else one with a new trace or new shapes
                has.
        """
        new = []
        with self._lock:
            for trace, leaves in batches:
                signature = tuple(Leaf(*leaf) for leaf in leaves)
                if compiled or (trace, signature) not in self._seen:
                    new.append((signature, self._why(signature)))
                    self._seen.add((trace, signature))
                self._last = signature
        for signature, cause in new:
            event = record(self._name, self._kind, describe(signature), cause, seconds / len(new))
            self._journal.compiled(event)
            self._compiled_kinds.add(self._kind)
            self._events += 1
            if self._events == MANY + 1:
                warnings.warn(
                    f"{self._name} has been compiled {self._events} times, each for batches of other shapes, the last "
                    f"because of {cause}. {ADVICE}",
                    stacklevel=2,
                )

    def _why(self, signature) -> str:
        if self._last is None:
            return self._cause
        if any(signature == seen for _, seen in self._seen):
            return "traced again: shapes as before, another structure of the batch or other types of the model's state"
        return describe_change(self._last, signature)


def install(model: keras.Model, jit_compile: bool | str) -> StepObserver:
    """Put observed step functions on the instance; a second time Keras builds them anew."""
    observer = observer_of(model)
    if observer is None:
        observer = StepObserver(model, jit_compile)
        for name in _REPLACED:
            setattr(model, name, getattr(observer, name))
        prepare(model)
    observer.jit_compile = jit_compile
    reset(model)
    return observer


def uninstall(model: keras.Model) -> None:
    """Make the model plain Keras again."""
    if observer_of(model) is not None:
        for name in _REPLACED:
            delattr(model, name)
        restore(model)
        stop_filling(model)
        reset(model)


def reset(model: keras.Model) -> None:
    """Forget the built step functions, so that Keras asks for them again."""
    for kind in KINDS:
        setattr(model, f"{kind}_function", None)


def observer_of(model: keras.Model) -> StepObserver | None:
    """The observer that is installed on the model."""
    owner = getattr(model.make_train_function, "__self__", None)
    return owner if isinstance(owner, StepObserver) else None


_REPLACED = (*(f"make_{kind}_function" for kind in KINDS), *CALLS.values(), "compile")
