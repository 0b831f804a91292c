"""What the suite knows of a model: how to make it, how to compile it, and its data."""

from collections.abc import Callable
from dataclasses import dataclass, field

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Case:
    """A model with its training.

    Attributes:
        make: `make(seed)` makes the model, not compiled, from weights of that seed.
        compile_arguments: Fresh arguments of `Model.compile`.
        data: `x` and, but for models that need none, `y`: arrays, or dicts of arrays.
        batch_size: Rows of a batch, in `fit` and in `predict`.
        pipeline: Whether the data goes through a `tf.data` pipeline rather than into `fit` as arrays.
        predict_rows: The most rows to predict, for models whose outputs are large.
        not_on: Keras' backends that cannot run it, each with the reason.
    """

    make: Callable[[int], keras.Model]
    compile_arguments: Callable[[], dict]
    data: dict
    batch_size: int
    pipeline: bool = False
    predict_rows: int | None = None
    not_on: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(keras.tree.flatten(self.data)[0])

    def fit_arguments(self, rows: int) -> dict:
        """Arguments of `fit` for the first rows of the data."""
        arrays = keras.tree.map_structure(lambda values: values[:rows], self.data)
        if not self.pipeline:
            return {**arrays, "batch_size": self.batch_size}
        dataset = tf.data.Dataset.from_tensor_slices((arrays["x"], arrays["y"])).shuffle(10_000, seed=0)
        return {"x": dataset.batch(self.batch_size).prefetch(tf.data.AUTOTUNE)}

    def predict_arguments(self, rows: int) -> dict:
        """Arguments of `predict` for the inputs of those rows."""
        rows = min(rows, self.predict_rows or rows)
        x = keras.tree.map_structure(lambda values: values[:rows], self.data["x"])
        if not self.pipeline:
            return {"x": x, "batch_size": self.batch_size}
        return {"x": tf.data.Dataset.from_tensor_slices(x).batch(self.batch_size).prefetch(tf.data.AUTOTUNE)}


def seeded(make: Callable[[], keras.Model]) -> Callable[[int], keras.Model]:
    """`make`, with all of Keras' randomness seeded first."""

    def made(seed: int):
        keras.utils.set_random_seed(seed)
        return make()

    return made
