"""The functions that Keras' loops call for their steps: made by us, or by Keras where it has to run the step itself."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_xla.backend import keras2
from keras_xla.backend.steps import (
    is_distributed,
    make_runner,
    predict_data,
    require_private,
    runs_eagerly,
    state_maker,
    watched_step,
)
from keras_xla.private.keras.trainer import require_step_functions, step_function
from keras_xla.private.names import Gone, otherwise
from keras_xla.training.decide.decisions import decisions
from keras_xla.training.decide.policy import Policy
from keras_xla.training.methods import Methods
from keras_xla.training.reports.journal import Decision, Journal
from keras_xla.training.reports.ledger import Ledger
from keras_xla.training.session import Session, Sessions
from keras_xla.training.steps.array_rows import ArrayRows
from keras_xla.training.steps.early_functions import EarlyFunctions
from keras_xla.training.steps.handed_state import hands_over_state, state_runner
from keras_xla.training.steps.last_batch import filled_step
from keras_xla.training.steps.run_ahead import PredictFunction, StepFunction
from keras_xla.training.steps.shown_losses import counted_by_batches


class StepFunctions:
    """Makes the step functions of one model.

    Args:
        model: The model, which keeps them as `train_function`, `test_function` and `predict_function`.
        methods: Its methods, of which those that make functions may be the user's own.
        jit_compile: `jit_compile()` gives True, False or `"auto"`.
        sessions: The calls of `fit`, `evaluate` and `predict` that go on.
        arrays: Arrays in memory, by the number that their row numbers carry.
        journal: Takes down what is decided and how it ran.
    """

    def __init__(
        self,
        model: keras.Model,
        methods: Methods,
        jit_compile: Callable[[], bool | str],
        sessions: Sessions,
        arrays: Mapping[int, ArrayRows],
        journal: Journal,
    ):
        self._model, self._methods, self._jit_compile = model, methods, jit_compile
        self._sessions, self._arrays, self._journal = sessions, arrays, journal
        self._eager: dict[str, Callable | None] = {}  # Keras' own functions, made while tf.function was off
        self._early = EarlyFunctions(model)

    @property
    def is_plain(self) -> bool:
        """Whether plain Keras runs the steps of the model as it is now."""
        model, asked = self._model, self._jit_compile()
        off = asked is False or (asked is True and not model.jit_compile)
        return off or model.run_eagerly or runs_eagerly()

    def gathers_rows(self, kind: str) -> bool:
        """Whether the function of a kind takes row numbers, and gathers the rows of arrays in memory itself."""
        function = self.early(kind)
        return isinstance(function, StepFunction) and function.runner.gathers_rows

    def early(self, kind: str) -> Callable | None:
        """The function of a kind, before Keras asks for it; None where only Keras may make it."""
        if predict_data is None:  # on JAX; there Keras reads the state of what it distributes when a function is made
            return None
        method = f"make_{kind}_function"
        if not (self._methods.is_outermost(method) and self._methods.is_keras_own(method)):
            return None
        return self._early.made(kind, self._make)

    def make(self, kind: str, force: bool) -> Callable:
        """In place of `Model.make_train_function`, `make_test_function` or `make_predict_function`."""
        return self._make(kind, force or self._early.asked(kind))

    def _make(self, kind: str, force: bool) -> Callable:
        model, attribute, method = self._model, f"{kind}_function", f"make_{kind}_function"
        function, made = getattr(model, attribute), None
        ours = isinstance(function, (StepFunction, PredictFunction))
        traced = ours if runs_eagerly() else function is self._eager.get(kind)  # tf.function is off since then, or on
        own = not self._methods.is_keras_own(method)
        if function is not None and not (force or traced):
            if own:  # which may make another one for each call
                self._methods.behind(method)()
                made = getattr(model, attribute)
            if not own or made is function:
                return function

        def keras_make():
            if made is not None:
                return made
            if not own:
                with contextlib.suppress(Gone):
                    return step_function(model, kind)
            setattr(model, attribute, None)
            self._methods.behind(method)()
            return getattr(model, attribute)

        plain = self.is_plain
        function = keras_make() if plain else self._compiled(kind, keras_make, own)
        setattr(model, attribute, function)
        if plain:
            self._eager[kind] = function if runs_eagerly() else None
        return function

    def _compiled(self, kind: str, keras_make: Callable[[], Callable], own: bool) -> Callable:
        """A function through XLA, or one that may be. `keras_make()` makes Keras' one, or the user's `own`."""
        model, journal = self._model, self._journal

        def session() -> Session | None:
            return self._sessions.current.get(kind)

        ledger = Ledger(f"{model.name}.{kind}_step", kind, journal)
        leads = "tf.distribute" if is_distributed(model) else "Keras 2" if keras2.loops_over_steps(model) else None
        runner = None if own or leads else self._runner(kind, ledger)
        if runner is not None:
            if kind == "predict":
                return PredictFunction(runner, session, journal)
            return StepFunction(runner, kind, keras2.steps_per_execution(model), session, journal)
        if not model.jit_compile:
            who = leads or "Keras' own function"
            journal.decided(Decision(kind, "all batches", "graph", f"{who} runs the step"))
            return keras_make()
        make = functools.partial(watched_step, kind, keras_make, own, ledger.saw)
        if own or not hands_over_state(model, kind):
            return make()
        runner = state_runner(model, kind, make, ledger)
        return StepFunction(runner, kind, keras2.steps_per_execution(model), session, journal)

    @otherwise(None)
    def _runner(self, kind: str, ledger: Ledger) -> Any:
        """The backend's runner; None where Keras' own function has to run the steps."""
        require_private()
        require_step_functions(keras2.model_class(self._model))
        model, asked, before, fill = self._model, self._jit_compile(), None, None
        policy = Policy(model, kind, asked, decisions(), self._journal, lambda: self._sessions.pace(kind))
        step = keras2.step_of(model, kind)
        closed: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
        if not keras2.is_keras2(model) and kind != "predict":
            before = state_maker(model) if kind == "train" else None
            fill = filled_step(model, kind) if asked is True else None
            closed = functools.partial(counted_by_batches, model)
        return make_runner(step, self._arrays, policy, ledger.compiled, before, fill, closed)
