"""Callbacks that look, and callbacks that do things to the model at any hook."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tests.differential.shown import Shown
from tests.differential.world import World

CALLS = (
    "train_begin",
    "train_end",
    "epoch_begin",
    "epoch_end",
    "test_begin",
    "test_end",
    "predict_begin",
    "predict_end",
)
BATCHES = tuple(f"{kind}_batch_{when}" for kind in ("train", "test", "predict") for when in ("begin", "end"))
HOOKS = CALLS + BATCHES


@dataclass(frozen=True, repr=False)
class Look(Shown):
    """Writes down every call of its hooks, and the model as it is then.

    Attributes:
        batches: Whether it has hooks for batches: then keras_xla may not run ahead.
    """

    batches: bool = False

    def make(self, world: World) -> keras.callbacks.Callback:
        def look(hook, callback, *args, **kwargs):
            optimizer = world.model.optimizer
            world.note(
                hook,
                {
                    "arguments": [_typed(each) for each in args],
                    "named": {name: _typed(each) for name, each in kwargs.items()},
                    "params": dict(callback.params or {}),
                    "iterations": int(optimizer.iterations) if optimizer is not None else None,
                    "weights": [np.array(each) for each in world.model.weights],
                },
            )

        return hooked({hook: look for hook in (HOOKS if self.batches else CALLS)})


@dataclass(frozen=True, repr=False)
class At(Shown):
    """Does something at a hook.

    Attributes:
        hook: Such as `"epoch_end"`.
        action: An action.
        turn: At which call of the hook, from 0; every one with None.
    """

    hook: str = "epoch_end"
    action: Any = None
    turn: int | None = None

    def make(self, world: World) -> keras.callbacks.Callback:
        turns = 0

        def act(hook, _callback, *_args, **_kwargs):
            nonlocal turns
            turns += 1
            if self.turn is None or self.turn == turns - 1:
                world.note(f"{hook}: {type(self.action).__name__}", self.action.run(world))

        return hooked({self.hook: act})


@dataclass(frozen=True, repr=False)
class Builtin(Shown):
    """One of Keras' own."""

    name: str = "EarlyStopping"

    def make(self, world: World) -> keras.callbacks.Callback:
        kind, folder = getattr(keras.callbacks, self.name), world.folder
        options: dict[str, Any] = {
            "EarlyStopping": {"monitor": "loss", "patience": 0, "min_delta": 0.1, "restore_best_weights": True},
            "ReduceLROnPlateau": {"monitor": "loss", "patience": 1, "min_delta": 1.0},
            "LearningRateScheduler": {"schedule": lambda epoch, rate: rate * 0.5},
            "ModelCheckpoint": {
                "filepath": folder / "{epoch}-{batch}.weights.h5",
                "save_weights_only": True,
                "save_freq": 2,
            },
            "BackupAndRestore": {"backup_dir": folder / "backup"},
            "CSVLogger": {"filename": folder / "log.csv"},
            "TerminateOnNaN": {},
            "SwapEMAWeights": {"swap_on_epoch": True},
        }[self.name]
        return kind(**options)


BUILTIN = ("EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler", "ModelCheckpoint", "BackupAndRestore")
BUILTIN += ("CSVLogger", "TerminateOnNaN")


def hooked(hooks: dict[str, Callable]) -> keras.callbacks.Callback:
    """A callback whose class has these hooks and no other; each is called with its name and the callback first."""

    def method(hook, act):
        return lambda self, *args, **kwargs: act(hook, self, *args, **kwargs)

    methods = {f"on_{hook}": method(hook, act) for hook, act in hooks.items()}
    return type("Hooked", (keras.callbacks.Callback,), methods)()


def made_of(callbacks: tuple, world: World, may_end: bool = False) -> list[keras.callbacks.Callback] | None:
    """What a call gets.

    Args:
        may_end: Whether it may find out only by asking that its data have ended.
    """
    made = [*world.side.callbacks(), *(each.make(world) for each in callbacks)]
    if may_end and not world.side.way:
        made = _counting_right(world.model, made)
    return made or None


def _counting_right(model: keras.Model, callbacks: list) -> list[keras.callbacks.Callback]:
    """Callbacks for plain Keras that take back what it does beyond the end of an epoch, or of an evaluation.

    The one result in which keras_xla differs, as its README says: what does not depend on data (the optimizer's
    counter, the seeds, weight decay, the counts of the losses of several outputs) has run in plain Keras before the
    data turn out to have ended. Here all is as it was after the last batch.
    """
    after: list[tuple[keras.Variable, Any]] = []

    def save(_hook, _callback, *_args, **_kwargs):
        variables = *model.variables, *model.optimizer.variables, *model.metrics_variables
        after[:] = [(each, np.array(each)) for each in variables]

    def restore(*_args, **_kwargs):
        for variable, value in after:
            variable.assign(value)
        after.clear()

    results = model._get_metrics_result_or_logs

    def restored_results(logs):  # Keras asks for them between the last batch and any hook
        restore()
        return results(logs)

    model._get_metrics_result_or_logs = restored_results
    batches = [hook for hook in BATCHES if not hook.startswith("predict")]
    first = {"epoch_end": restore, "test_end": restore} | dict.fromkeys(
        batches, lambda *_args, **_kwargs: after.clear()
    )
    return [hooked(first), *callbacks, hooked(dict.fromkeys(batches, save))]


def _typed(value: Any) -> Any:
    """With the types of the numbers in logs, which callbacks write to files."""
    if isinstance(value, dict):
        return {name: [type(each).__name__, each] for name, each in value.items()}
    return value
