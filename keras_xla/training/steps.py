"""Step functions that write every XLA compilation of `fit`, `evaluate` and `predict` to the compile log."""

import threading
from collections.abc import Callable

import keras

from keras_xla.backend import events
from keras_xla.training import keras2
from keras_xla.training.explain import refuse_ops
from keras_xla.training.signature import Leaf, batch_names, describe, describe_change

KINDS = ("train", "test", "predict")


class StepObserver:
    """Builds the step functions of one model instance; lives on the instance, so that its class stays plain Keras."""

    def __init__(self, model: keras.Model):
        self._model = model
        self._compiled_kinds: set[str] = set()

    def make_train_function(self, force: bool = False):
        """In place of `Model.make_train_function`."""
        return self._make("train", force)

    def make_test_function(self, force: bool = False):
        """In place of `Model.make_test_function`."""
        return self._make("test", force)

    def make_predict_function(self, force: bool = False):
        """In place of `Model.make_predict_function`."""
        return self._make("predict", force)

    def _make(self, kind: str, force: bool):
        model, attribute, method = self._model, f"{kind}_function", f"make_{kind}_function"
        if getattr(model, attribute) is not None and not force:
            return getattr(model, attribute)
        if model.run_eagerly or not model.jit_compile:
            return getattr(type(model), method)(model, force=True)

        def keras_make():
            getattr(type(model), method)(model, force=True)
            return getattr(model, attribute)

        own = getattr(type(model), method) is not getattr(keras2.model_class(model), method)
        ledger = Ledger(f"{model.name}.{kind}_step", kind, self._first_cause(kind), self._compiled_kinds)
        function = keras2.observed_step_of(model)(model, kind, keras_make, own, batch_names, self._refuse, ledger.saw)
        setattr(model, attribute, function)
        return function

    def _first_cause(self, kind: str) -> str:
        return "model recompiled" if kind in self._compiled_kinds else "first call"

    def _refuse(self, blockers):
        refuse_ops(self._model, blockers)


class Ledger:
    """What one step function has compiled so far; writes what is new to the compile log."""

    def __init__(self, name: str, kind: str, first_cause: str, compiled_kinds: set[str]):
        self._name, self._kind, self._cause = name, kind, first_cause
        self._compiled_kinds = compiled_kinds
        self._seen: set[tuple] = set()
        self._last: tuple | None = None
        self._lock = threading.Lock()

    def saw(self, batches: list[tuple[str, list[tuple]]], seconds: float, compiled: bool = False) -> None:
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
            events.record(self._name, self._kind, describe(signature), cause, seconds / len(new))
            self._compiled_kinds.add(self._kind)

    def _why(self, signature) -> str:
        if self._last is None:
            return self._cause
        if any(signature == seen for _, seen in self._seen):
            return "traced again: shapes as before, another structure of the batch or other types of the model's state"
        return describe_change(self._last, signature)


def install(model: keras.Model) -> None:
    """Put observed step functions on the instance; a second time changes nothing but makes Keras build them anew."""
    if observer_of(model) is None:
        observer = StepObserver(model)
        for kind in KINDS:
            setattr(model, f"make_{kind}_function", getattr(observer, f"make_{kind}_function"))
    reset(model)


def reset(model: keras.Model) -> None:
    """Forget the built step functions, so that Keras asks for them again."""
    for kind in KINDS:
        setattr(model, f"{kind}_function", None)


def observer_of(model: keras.Model) -> StepObserver | None:
    """The observer that is installed on the model."""
    method: Callable = model.make_train_function
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, StepObserver) else None
