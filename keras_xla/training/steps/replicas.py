"""Steps under `tf.distribute`: which of them can be divided into one part for XLA and one for the plain graph."""

import time
from collections.abc import Callable
from typing import Any

import keras

from keras_xla.backend.execution import Execution
from keras_xla.backend.keras2 import is_keras2, steps_per_execution
from keras_xla.backend.new_shapes import NewShapes
from keras_xla.backend.signature import batch_names, describe
from keras_xla.backend.steps import make_replicas_runner, require_private, symbolic_build
from keras_xla.diagnosis.errors import XLAUnsupportedError
from keras_xla.private.keras import replace_build, require_replica_steps, restore_build
from keras_xla.private.names import Gone, otherwise
from keras_xla.training.decide.policy import Policy
from keras_xla.training.reports.journal import Decision, Journal
from keras_xla.training.session import Session


class ReplicasFunction:
    """What `fit`, `evaluate` and `predict` call under a strategy, around a backend's runner.

    The data come from Keras, which distributes them. Each call of a train or test function is for `steps` batches;
    `session()` is the call of `fit` and the like that is going on, or None.
    """

    def __init__(self, runner, kind: str, steps: int, session: Callable[[], Session | None], journal: Journal):
        self._runner, self._kind, self._steps, self._session, self._journal = runner, kind, steps, session, journal

    def __call__(self, batches) -> Any:
        """The outputs of the last of the next batches of an iterator; of all of a list, for `predict`."""
        if self._kind == "predict":
            return self._runner.joined([self._timed(self._runner.run_batch, batch).outputs for batch in batches])
        return self._timed(self._runner.run, batches, self._steps).outputs

    def _timed(self, run: Callable, *arguments: Any) -> Execution:
        start = time.perf_counter()
        made = run(*arguments)
        if made.settled:
            self._journal.ran(self._kind, made.way, made.batches, time.perf_counter() - start)
        session = self._session()
        if session is not None:
            session.done += made.batches
        return made


def replicas_function(
    model: keras.Model,
    kind: str,
    own: bool,
    policy: Policy,
    saw: Callable,
    keras_make: Callable,
) -> tuple[Any, Callable]:
    """The backend's runner of one kind of step under a mirrored strategy, and the function around it.

    None and Keras' own function, which `keras_make` builds, where that one has to run the step; the journal tells so
    then, and `jit_compile=True` raises `XLAUnsupportedError` instead. `own` tells whether the model's class builds a
    function of its own; `saw` is `Ledger.saw`.
    """

    def plainly(reason: str, fix: str) -> Callable:
        if policy.jit_compile is True:
            raise XLAUnsupportedError(
                f"XLA cannot compile the {kind} step of {model.name!r} under its tf.distribute strategy, and nothing "
                f"of it has run: {reason}. Gradients are summed over the replicas outside of XLA, so it can compile "
                f"only what Keras' own step does before that. Fix: {fix}, or compile with "
                'jit_compile="auto" (the plain graph, for such a step) or False.'
            )
        policy.journal.decided(Decision(kind, "all batches", "graph", f"under tf.distribute: {reason}"))
        return keras_make()

    def note(new_shapes: NewShapes, reason: str) -> None:
        policy.journal.decided(Decision(kind, describe(new_shapes.leaves), "graph", reason))

    custom = f"make_{kind}_function" if own else _custom(model, kind)
    if custom:
        return None, plainly(f"{custom} is the model's own", "write what is special into call or compute_loss")
    try:
        require_private()
        require_replica_steps(model)
    except Gone as gone:
        return None, plainly(str(gone), "install a version that keras_xla was tested with")
    answers = policy.decide, saw, policy.failed, policy.again, note, plainly
    runner = make_replicas_runner(model, kind, policy.jit_compile is True, batch_names, *answers)
    return runner, ReplicasFunction(runner, kind, steps_per_execution(model), policy.pace, policy.journal)


@otherwise(None)
def prepare(model: Any) -> None:
    """Let Keras build the model where several workers train it, which it cannot do by itself."""
    build = None if is_keras2(model) else symbolic_build(model)
    if build is not None:
        replace_build(model, build)


def restore(model: Any) -> None:
    """Undo `prepare`."""
    restore_build(model)


def _custom(model: keras.Model, kind: str) -> str:
    step = f"{kind}_step"
    own = step in vars(model) or getattr(type(model), step) is not getattr(keras.Model, step)
    return step if own else ""
