"""What a script does with a model. Every action runs alone, or at a hook of a callback."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tests.differential.callbacks import made_of
from tests.differential.data import RAISED, UNKNOWN, Data, tensor
from tests.differential.shown import Shown
from tests.differential.world import World

ROWS = Data()
OTHER = Data(rows=12, batch=6, seed=1)
VALID = Data(rows=10, batch=4, seed=2)


class Action(Shown):
    """`run` does it and returns what is to be compared."""

    def run(self, world: World) -> Any:
        raise NotImplementedError


def optimizer_of(name: str, ema: bool, accumulate: int, clipnorm: float | None) -> keras.optimizers.Optimizer:
    """A fresh one. No gradient close to zero becomes a step of full size: rounding would show."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5) if name == "decayed" else 0.05
    more = {
        "use_ema": ema,
        "ema_momentum": 0.5,
        "gradient_accumulation_steps": accumulate or None,
        "clipnorm": clipnorm,
    }
    if ema:
        more["ema_overwrite_frequency"] = 3
    if name in ("adam", "adamw"):
        kind = keras.optimizers.Adam if name == "adam" else keras.optimizers.AdamW
        return kind(0.01, epsilon=0.01, **more)
    return keras.optimizers.SGD(rate, momentum=0.0 if name == "sgd" else 0.9, **more)


@dataclass(frozen=True, repr=False)
class Compile(Action):
    """`keras_xla.compile` on our side.

    Attributes:
        plainly: `model.compile` on our side, too.
        freeze: Makes the first layer not trainable before.
    """

    optimizer: str = "sgd"
    ema: bool = False
    accumulate: int = 0
    clipnorm: float | None = None
    steps_per_execution: int = 1
    weighted: bool = False
    plainly: bool = False
    freeze: bool = False

    def run(self, world):
        kind, model = world.kind, world.model
        if self.freeze:
            model.layers[0].trainable = not model.layers[0].trainable
        metrics = keras.tree.map_structure(lambda name: name, kind.metrics)
        options = {
            "optimizer": optimizer_of(self.optimizer, self.ema, self.accumulate, self.clipnorm),
            "loss": kind.loss,
            "metrics": list(metrics) if isinstance(metrics, tuple) else metrics,
            "steps_per_execution": self.steps_per_execution,
            **kind.more,
        }
        if self.weighted:
            options["weighted_metrics"] = options.pop("metrics")
        if self.plainly:
            model.compile(**options)
        else:
            world.side.compile(model, **options)


@dataclass(frozen=True, repr=False)
class Fit(Action):
    """`model.fit`.

    Attributes:
        validation: `Data`, or the part of the rows that is split off.
        callbacks: Of `callbacks.py`.
    """

    data: Data = ROWS
    epochs: int = 1
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    shuffle: bool = True
    class_weight: bool = False
    validation: Data | float | None = None
    validation_freq: int = 1
    validation_batch_size: int | None = None
    validation_steps: int | None = None
    verbose: int = 0
    callbacks: tuple = ()

    def run(self, world):
        given = world.given(self.data)
        options: dict[str, Any] = given.arguments()
        if self.data.arrays:
            options["batch_size"] = self.data.batch
        if self.class_weight:
            options["class_weight"] = {0: 0.5, 1: 1.0, 2: 2.0}
        if isinstance(self.validation, float):
            options["validation_split"] = self.validation
        elif self.validation is not None:
            valid = world.given(self.validation)
            if self.validation.arrays:
                options["validation_data"] = tuple(valid.arguments().values())
                options["validation_batch_size"] = self.validation_batch_size or self.validation.batch
            else:
                options["validation_data"] = valid.made()
        if self.data.endless and self.steps_per_epoch is None:
            options["steps_per_epoch"] = self.data.steps
        else:
            options["steps_per_epoch"] = self.steps_per_epoch
        return world.model.fit(
            **options,
            epochs=self.epochs,
            initial_epoch=self.initial_epoch,
            shuffle=self.shuffle,
            validation_freq=self.validation_freq,
            validation_steps=self.validation_steps or _needed(self.validation),
            verbose=self.verbose,
            callbacks=made_of(self.callbacks, world, _may_end(self.data, options["steps_per_epoch"], self.validation)),
        )


@dataclass(frozen=True, repr=False)
class Evaluate(Action):
    data: Data = VALID
    steps: int | None = None
    return_dict: bool = False
    verbose: int = 0
    callbacks: tuple = ()

    def run(self, world):
        return world.model.evaluate(
            **_batched(world, self.data),
            steps=self.steps or _needed(self.data),
            return_dict=self.return_dict,
            verbose=self.verbose,
            callbacks=made_of(self.callbacks, world, _may_end(self.data, self.steps)),
        )


@dataclass(frozen=True, repr=False)
class Predict(Action):
    data: Data = VALID
    steps: int | None = None
    verbose: int = 0
    callbacks: tuple = ()

    def run(self, world):
        return world.model.predict(
            **_batched(world, self.data, targets=False),
            steps=self.steps or _needed(self.data),
            verbose=self.verbose,
            callbacks=made_of(self.callbacks, world),
        )


@dataclass(frozen=True, repr=False)
class TrainOnBatch(Action):
    data: Data = OTHER
    number: int = 0
    return_dict: bool = False

    def run(self, world):
        return world.model.train_on_batch(*world.given(self.data).batch(self.number), return_dict=self.return_dict)


@dataclass(frozen=True, repr=False)
class TestOnBatch(Action):
    __test__ = False  # for pytest
    data: Data = OTHER
    number: int = 0

    def run(self, world):
        return world.model.test_on_batch(*world.given(self.data).batch(self.number))


@dataclass(frozen=True, repr=False)
class PredictOnBatch(Action):
    data: Data = OTHER
    number: int = 0

    def run(self, world):
        return world.model.predict_on_batch(world.given(self.data).batch(self.number)[0])


@dataclass(frozen=True, repr=False)
class Call(Action):
    """The model itself is called, as if to train: seeds move on."""

    data: Data = OTHER

    def run(self, world):
        x = keras.tree.map_structure(tensor, world.given(self.data).batch(0)[0])
        return world.model(x, training=True)


@dataclass(frozen=True, repr=False)
class ChangeArrays(Action):
    """Changes rows in place: the targets, and the inputs that are numbers."""

    data: Data = ROWS

    def run(self, world):
        given = world.given(self.data)
        for array in keras.tree.flatten((given.x, given.y)):
            if not isinstance(array, np.ndarray):  # ragged: nothing could change it
                continue
            if array.dtype.kind == "f":
                array *= 0.5
            else:
                array[:] = array[::-1].copy()


@dataclass(frozen=True, repr=False)
class SaveWeights(Action):
    name: str = "kept"

    def run(self, world):
        world.model.save_weights(world.folder / f"{self.name}.weights.h5")


@dataclass(frozen=True, repr=False)
class LoadWeights(Action):
    name: str = "kept"

    def run(self, world):
        world.model.load_weights(world.folder / f"{self.name}.weights.h5")


@dataclass(frozen=True, repr=False)
class SetLearningRate(Action):
    rate: float = 0.01

    def run(self, world):
        world.model.optimizer.learning_rate = self.rate


@dataclass(frozen=True, repr=False)
class ScaleWeights(Action):
    """Assigns to every trainable variable."""

    factor: float = 0.5

    def run(self, world):
        for variable in world.model.trainable_variables:
            variable.assign(variable * self.factor)


@dataclass(frozen=True, repr=False)
class Stop(Action):
    """Sets what a callback sets to end a call of `"fit"`, `"evaluate"` or `"predict"`."""

    call: str = "fit"

    def run(self, world):
        flag = {"fit": "stop_training", "evaluate": "stop_evaluating", "predict": "stop_predicting"}[self.call]
        setattr(world.model, flag, True)


@dataclass(frozen=True, repr=False)
class Raise(Action):
    error: str = "RuntimeError"

    def run(self, world):
        kinds = {kind.__name__: kind for kind in (RuntimeError, ValueError, KeyboardInterrupt, StopIteration)}
        raise kinds[self.error](RAISED)


def _batched(world: World, data: Data, targets: bool = True) -> dict[str, Any]:
    return world.given(data).arguments(targets) | ({"batch_size": data.batch} if data.arrays else {})


def _may_end(data: Data, steps: int | None, validation: Data | float | None = None) -> bool:
    """Whether Keras may learn only by asking for one more batch that there is none."""
    return steps is not None or any(isinstance(each, Data) and each.form in UNKNOWN for each in (data, validation))


def _needed(data: Data | float | None) -> int | None:
    """Steps where the data would never end."""
    return data.steps if isinstance(data, Data) and data.endless else None
