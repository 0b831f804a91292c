"""The one place that touches a model: what keras_xla puts on it, and takes off again."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend import keras2
from keras_xla.backend.data import known_batches, runs_python
from keras_xla.backend.row_numbers import MARK, are_numbers, owner_of
from keras_xla.backend.steps import must_be_freed, reads_ahead
from keras_xla.private.keras.trainer import CACHED_EVALUATION
from keras_xla.training.methods import Methods
from keras_xla.training.reports.journal import STEP_KINDS, Journal
from keras_xla.training.session import Session, Sessions, capped, flat, is_list
from keras_xla.training.steps.array_rows import ArrayRows, BatchesForOthers, array_rows, with_validation_cut_off
from keras_xla.training.steps.fill_predict import fill_last_batch
from keras_xla.training.steps.in_order import (
    InOrder,
    dataset_in_order,
    evaluate_in_order,
    predict_in_order,
    rows_in_order,
)
from keras_xla.training.steps.last_batch import stop_filling
from keras_xla.training.steps.run_ahead import StepFunction
from keras_xla.training.steps.step_functions import StepFunctions
from keras_xla.troubleshooting import warn

METHODS = {"train": "fit", "test": "evaluate", "predict": "predict"}
_STOPS = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}
_ATTRIBUTE = "keras_xla_attachment"  # of a model


class Attachment:
    """What is put on one model instance; lives on the instance, so that its class stays plain Keras.

    Attributes:
        jit_compile: True or `"auto"`; False from when plain Keras was asked for until the calls that go on have ended.
        journal: What was decided and how it ran.
        enabled: Whether the model was attached because `keras_xla.enable` was on, not because of its own script.
        methods: Ours, for the instance, and what is behind them.
    """

    def __init__(self, model: keras.Model, jit_compile: bool | str):
        self._model, self.jit_compile, self.enabled = model, jit_compile, False
        self.journal = Journal()
        self._sessions = Sessions()
        self._arrays: dict[int, ArrayRows] = {}  # of the calls that go on, by the number that row numbers carry
        self._said = False
        ours: dict[str, Callable] = {"compile": self.compile}
        for kind, name in METHODS.items():
            ours[name] = functools.partial(self.call, kind)
            ours[f"make_{kind}_function"] = functools.partial(self.make, kind)
        self.methods = Methods(model, ours)
        self._functions = StepFunctions(
            model, self.methods, lambda: self.jit_compile, self._sessions, self._arrays, self.journal
        )

    def __deepcopy__(self, memo):
        return None  # what is a copy of a model has nothing attached

    def compile(self, *args, **kwargs):
        """In place of `Model.compile`: what it says about XLA counts; if it says nothing, all stays as it was."""
        model, method = self._model, self.methods.behind("compile")
        if self.jit_compile is False:  # it is plain Keras by now
            return method(*args, **kwargs)
        if self.enabled or getattr(method, "attaches", False):  # `keras_xla.enable` decides anew
            detach(model)
            return method(*args, **kwargs)
        result = method(*args, **kwargs)
        asked = kwargs.get("jit_compile", inspect.signature(method).bind(*args, **kwargs).arguments.get("jit_compile"))
        if asked not in (None, "auto"):
            detach(model)
            return result
        if self.jit_compile is True and not model.run_eagerly:
            model.jit_compile = True
        if not self._said and not model.run_eagerly:
            self._said = True
            warn(
                f"{model.name!r} was compiled again by its own compile method and runs through keras_xla still, with "
                f"jit_compile={self.jit_compile!r} as before. For plain Keras pass jit_compile=False to it."
            )
        return result

    def make(self, kind: str, force: bool = False):
        """In place of `Model.make_train_function`, `make_test_function` or `make_predict_function`."""
        return self._functions.make(kind, force)

    def follow(self, session: Session | None) -> None:
        """Let this tell how many steps are to come in a `fit` that was Keras' own when it began; None to stop."""
        self._sessions.followed = session

    def steps_done(self, kind: str) -> int:
        """How many steps of the epoch that goes on, or was the last one, have run here."""
        session = self._sessions.current.get(kind)
        return 0 if session is None else session.done

    def session(self, kind: str) -> Session | None:
        """The call of `fit` (`"train"`), `evaluate` or `predict` that goes on in this thread."""
        return self._sessions.pace(kind)

    @property
    def busy(self) -> bool:
        """Whether a call goes on that has arrays in memory, or one in this thread."""
        return bool(self._arrays or self._sessions.current)

    def call(self, kind: str, /, *args, **kwargs):
        """In place of `Model.fit`, `evaluate` or `predict`."""
        model, name = self._model, METHODS[kind]
        method, old = self.methods.behind(name), keras2.is_keras2(model)
        if kind == "train":
            self._sessions.followed = None  # it has ended by now, or does without from here on
        if not self.methods.is_keras_own(name):  # the user's own gets what the caller gave
            with self._begun(Session(kind, self._sessions, epochs=self._sessions.epochs(kind, kwargs))):
                return method(*args, **kwargs)
        try:
            bound = inspect.signature(method).bind(*args, **kwargs)
        except TypeError:
            return method(*args, **kwargs)  # which says what is wrong
        if kind != "predict" and not old and not model.compiled:
            return method(*args, **kwargs)  # which says so
        callbacks = bound.arguments.get("callbacks")
        self._switch(callbacks)
        if self.jit_compile is False and not are_numbers(bound.arguments.get("x")):  # which a `fit` made before
            return method(*args, **kwargs)
        with self._begun(self._session(kind, bound.arguments)) as session:
            known = all(hasattr(each, "set_model") for each in flat(callbacks))  # else Keras says what is wrong
            # A CallbackList calls its own callbacks, maybe a session among them.
            told = known and not is_list(callbacks)
            if told:
                bound.arguments["callbacks"] = [*flat(callbacks), session]
            if old:
                return method(*bound.args, **bound.kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            extra = given.pop("kwargs", {})
            if kind == "predict":
                return self._predict(session, given)
            if kind == "test":
                return self._evaluate(session, given, extra)
            return method(**(self._with_rows(session, given) if told else given))

    def _switch(self, callbacks: Any) -> None:
        """Switch XLA as callbacks of a call want it: Keras gives them the model when we have made something already."""
        from keras_xla.training.callbacks import XLACompile  # late: it is made of what is here

        for each in [] if is_list(callbacks) else flat(callbacks):  # those of a CallbackList have been told
            if isinstance(each, XLACompile):
                each.switch(self._model)

    def _session(self, kind: str, given: dict[str, Any]) -> Session:
        """A session for a call of Keras' own method."""
        model, attribute = self._model, f"{kind}_function"
        ahead = self.jit_compile == "auto" or backend.name == "jax"
        ahead &= reads_ahead(given.get("x")) and not capped()  # which only Keras' loop knows in a validation
        # Another number since the function was made: plain Keras goes on with the function, and counts by that number.
        function = getattr(model, attribute, None)
        ahead &= not isinstance(function, StepFunction) or function.steps == keras2.steps_per_execution(model)
        epochs = self._sessions.epochs(kind, {**given, **given.get("kwargs", {})})
        steps = given.get("steps")
        of_fit = CACHED_EVALUATION in given.get("kwargs", {})
        if steps is None and of_fit and ahead:  # Keras does not tell the session
            steps = known_batches(given.get("x"))
        made = keras2.untimed(Session) if keras2.is_keras2(model) else Session
        session = made(kind, self._sessions, ahead, steps, epochs, given.get("callbacks"))
        session.of_fit = of_fit
        session.must_be_freed = runs_python(given.get("x")) or must_be_freed(given.get("x"))
        session.stopped = lambda: getattr(model, _STOPS[kind], False)
        session.wrapped = lambda function: getattr(model, attribute, None) is not function
        if kind != "predict":  # whose batches are never row numbers
            others = BatchesForOthers(model, attribute, self._arrays)
            session.batch_begins, session.batch_ends = others.begin, others.end
        return session

    @contextlib.contextmanager
    def _begun(self, session: Session) -> Iterator[Session]:
        """A call while its session is the thread's; when it ends, however it ends, nothing of it is left."""
        kind, current = session.kind, self._sessions.current
        before = current.get(kind)
        current[kind] = session
        try:
            yield session
        finally:
            session.let_go()
            if before is None:
                current.pop(kind, None)
            else:
                current[kind] = before
            for owner in session.owners:
                self._arrays.pop(owner, None)
            session.batch_ends()  # of one that an error has cut off
            if isinstance(function := getattr(self._model, f"{kind}_function", None), StepFunction):
                function.forget()
            if self.jit_compile is False and not self.busy and attachment_of(self._model) is self:
                detach(self._model)

    def _with_rows(self, session: Session, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `fit`, with row numbers in place of arrays where our functions gather the rows."""
        ours = {kind: self._functions.gathers_rows(kind) for kind in ("train", "test")}
        if not self.methods.is_outermost("evaluate") or not self.methods.is_keras_own("evaluate"):
            ours["test"] = False
        if given["validation_split"] and given["validation_data"] is None:
            cut = with_validation_cut_off(given) if all(ours.values()) else None
            if cut is None:
                return given
            given = cut
        validation = given["validation_data"]
        if ours["train"] and (rows := array_rows(given)) is not None:
            given = {**given, "x": self._keep(session, "train", rows).numbers(), "y": None, "sample_weight": None}
            rows.read()  # Keras reads its data before the callbacks begin
        if ours["test"] and isinstance(validation, (tuple, list)) and len(validation) in (2, 3):
            data = dict(zip(("x", "y", "sample_weight"), validation, strict=False))
            if (rows := array_rows(data)) is not None:
                given = {**given, "validation_data": (self._keep(session, "test", rows).numbers(),)}
        return given

    def _keep(self, session: Session, kind: str, rows: ArrayRows) -> ArrayRows:
        """Keep arrays for the steps of a call."""
        session.owners.append(rows.owner)
        session.in_memory.add(kind)
        self._arrays[rows.owner] = rows
        return rows

    def _rows(self, session: Session, given: dict[str, Any], extra: dict[str, Any]) -> InOrder | None:
        return rows_in_order(self._model, session, given, extra, self._arrays, self._functions.early, self.journal)

    def _evaluate(self, session: Session, given: dict[str, Any], extra: dict[str, Any]):
        batches = self._rows(session, given, extra)
        if batches is not None:
            return evaluate_in_order(self._model, batches, given)
        if are_numbers(given["x"]):
            self._arrays[owner_of(given["x"][MARK][0])].read()  # Keras has read the data by now
        return type(self._model).evaluate(self._model, **given, **extra)

    def _predict(self, session: Session, given: dict[str, Any]):
        model = self._model
        if not is_list(given["callbacks"]):  # a CallbackList, which knows other numbers of batches
            batches = self._rows(session, given, {}) or dataset_in_order(
                model, session, given, self._functions.early, self.journal
            )
            if batches is not None:
                return predict_in_order(model, batches, given)
        rows = None if self._functions.is_plain else fill_last_batch(model, given)
        outputs = type(model).predict(model, **given)
        return outputs if rows is None else keras.tree.map_structure(lambda array: array[:rows], outputs)


def attach(model: keras.Model, jit_compile: bool | str) -> Attachment:
    """Put step functions of ours on the instance; a second time Keras builds them anew."""
    attachment = attachment_of(model)
    if attachment is None:
        attachment = Attachment(model, jit_compile)
        attachment.methods.put_on()
        setattr(model, _ATTRIBUTE, attachment)
    attachment.jit_compile = jit_compile
    reset(model)
    return attachment


def detach(model: keras.Model) -> None:
    """Make the model plain Keras again; what a call that goes on has set up stays until its end."""
    attachment = attachment_of(model)
    if attachment is None:
        return
    attachment.jit_compile = False
    if not attachment.busy:
        attachment.methods.take_off()
        delattr(model, _ATTRIBUTE)
    stop_filling(model)
    reset(model)


def reset(model: keras.Model) -> None:
    """Build the step functions that there are anew; a call that goes on asks the model for its one at every step."""
    for kind in STEP_KINDS:
        if getattr(model, f"{kind}_function", None) is not None:
            setattr(model, f"{kind}_function", None)
            getattr(model, f"make_{kind}_function")()


def attachment_of(model: keras.Model) -> Attachment | None:
    """What is attached to the model; None if it is plain Keras."""
    return vars(model).get(_ATTRIBUTE)  # not getattr: a model may ask one inside of it for what it has not


def method_of(model: keras.Model, name: str) -> Callable:
    """A method of the model's own, also where ours is in front of it."""
    attachment = attachment_of(model)
    return getattr(model, name) if attachment is None else attachment.methods.behind(name)
