"""Small models and data, and a way to see only the compilations of one test."""

import keras
import numpy as np

from keras_xla.backend.compile_log import compile_log

SIZE, CLASSES = 72, 3
X = np.random.default_rng(0).normal(size=(SIZE, 20)).astype("float32")
Y = (np.arange(SIZE) % CLASSES).astype("int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
OPTIONS = {"optimizer": "sgd", "loss": LOSS}
FORCED = {**OPTIONS, "jit_compile": True}


def classifier(name: str | None = None, dropout: float = 0.0) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    middle = [layers.Dropout(dropout)] if dropout else []  # dear to compile: only where it matters
    return keras.Sequential([keras.Input((20,)), layers.Dense(8, "relu"), *middle, layers.Dense(CLASSES)], name=name)


def normalized(name: str | None = None) -> keras.Model:
    """A model whose rows depend on each other, so that no batch of it may be filled up."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((20,)), keras.layers.BatchNormalization(), keras.layers.Dense(CLASSES)], name=name
    )


class Log:
    """The events since it was made (or since the last look)."""

    def __init__(self):
        self._start = len(compile_log())

    def new(self) -> list:
        events = compile_log()[self._start :]
        self._start += len(events)
        return events

    def kinds(self) -> list[str]:
        return [event.kind for event in self.new()]

    def causes(self) -> list[str]:
        return [event.cause for event in self.new()]
