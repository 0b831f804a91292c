"""Kinds of models, all tiny: how one is built, what its rows look like, and what it is compiled with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

FEATURES, CLASSES, IDS, LENGTH, LONGEST = 5, 3, 11, 3, 9
CROSSENTROPY = "sparse_categorical_crossentropy"


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        build: Makes one.
        rows: Draws so many rows: `(x, y)`.
        loss: For `compile`, as are `metrics` and `more`. A fresh object would hide what a second compile shares.
        classes: Whether labels are numbers of classes, so that classes may have weights and labels be out of range.
        bad: What `data.spoil` can do to its rows so that plain Keras refuses them.
        whole: Whether XLA can compile all of it.
        forms: Of data that it takes, if not all; see `data.Data`.
        splits: Whether a part of it runs plainly where XLA compiles the rest.
        longest: Of the rows that it takes, where it takes rows of all lengths; 0 where they have one.
    """

    build: Callable[[], keras.Model]
    rows: Callable[[np.random.Generator, int], tuple[Any, Any]]
    loss: Any = CROSSENTROPY
    metrics: Any = ("accuracy",)
    more: dict[str, Any] = field(default_factory=dict)
    classes: bool = True
    bad: tuple[str, ...] = ("label", "width")
    whole: bool = True
    splits: bool = False
    forms: tuple[str, ...] = ()
    longest: int = 0


def _numbers(rng, rows):
    return rng.normal(size=(rows, FEATURES)).astype("float32")


def _labels(rng, rows):
    return rng.integers(0, CLASSES, rows).astype("int32")


def _classified(rng, rows):
    return _numbers(rng, rows), _labels(rng, rows)


def _measured(rng, rows):
    x = _numbers(rng, rows)
    return x, np.tanh(x[:, :1] - x[:, 1:2])


def _ids(rng, rows):
    return rng.integers(1, IDS, (rows, LENGTH)).astype("int32"), _labels(rng, rows)


def _two_ids(rng, rows):
    ids = rng.integers(0, IDS, (rows, 2 * LENGTH + 1)).astype("int32")
    return [ids[:, :LENGTH], ids[:, LENGTH:]], _labels(rng, rows)


def _texts(rng, rows):
    return rng.integers(1, IDS, (rows, LONGEST)).astype("int32"), _labels(rng, rows)


def _tagged(rng, rows):
    return _texts(rng, rows)[0], rng.integers(0, CLASSES, (rows, LONGEST)).astype("int32")


def _dict(rng, rows):
    return {"left": _numbers(rng, rows), "right": _numbers(rng, rows)[:, :3]}, _labels(rng, rows)


def _list(rng, rows):
    return [_numbers(rng, rows), _numbers(rng, rows)[:, :3]], _labels(rng, rows)


def _two_targets(rng, rows):
    x, y = _measured(rng, rows)
    return x, {"size": y, "sort": _labels(rng, rows)}


def _images(rng, rows):
    return rng.normal(size=(rows, 8, 8, 1)).astype("float32"), _labels(rng, rows)


def _series(rng, rows):
    return rng.normal(size=(rows, LENGTH, 3)).astype("float32"), _labels(rng, rows)


def _words(rng, rows):
    return rng.choice(["red", "green", "blue", "grey"], (rows, 1)).astype(object), _labels(rng, rows)


def _ragged(rng, rows):
    lengths = rng.integers(1, LENGTH + 1, rows)
    ids = rng.integers(1, IDS, lengths.sum()).astype("int32")
    return tf.RaggedTensor.from_row_lengths(ids, lengths), _labels(rng, rows)


def _head(*middle, shape=(FEATURES,), dtype=None):
    classes = layers.Dense(CLASSES, "softmax", dtype="float32")  # probabilities in full precision, as the guides say
    return keras.Sequential([keras.Input(shape, dtype=dtype), *middle, classes])


def mlp():
    return _head(layers.Dense(6, "tanh"), layers.Rescaling(30.0))  # sure of its classes: losses are of logits


def dropout():
    return _head(layers.Dense(8, "tanh"), layers.Dropout(0.3, seed=4), layers.Dense(6, "tanh"), layers.Dropout(0.3))


def batchnorm():
    return _head(layers.Dense(6, use_bias=False), layers.BatchNormalization(momentum=0.8), layers.Activation("tanh"))


def embedding():
    return _head(
        layers.Embedding(IDS, 4, mask_zero=True), layers.GlobalAveragePooling1D(), shape=(LENGTH,), dtype="int32"
    )


def texts():
    return _head(layers.Embedding(IDS, 4), layers.GlobalAveragePooling1D(), shape=(None,), dtype="int32")


def tagger():
    return _head(layers.Embedding(IDS, 4), layers.Dense(4, "tanh"), shape=(None,), dtype="int32")


def convnet():
    return _head(
        layers.Conv2D(3, 3, activation="tanh"),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(4, "tanh"),
        shape=(8, 8, 1),
    )


def lstm():
    return _head(layers.LSTM(3), shape=(LENGTH, 3))


def gru():
    return _head(layers.GRU(3, return_sequences=True), layers.GlobalAveragePooling1D(), shape=(LENGTH, 3))


def words():
    return _head(
        layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot"),
        layers.Reshape((4,)),
        layers.Dense(4, "tanh"),
        shape=(1,),
        dtype="string",
    )


def regularized():
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(6, "tanh", kernel_regularizer="l2"),
            layers.ActivityRegularization(l2=0.01, dtype="float32"),
            layers.Dense(1),
        ]
    )


def noisy():
    return keras.Sequential([keras.Input((FEATURES,)), layers.GaussianNoise(0.2), layers.Dense(1)])


def two_inputs():
    left, right = keras.Input((FEATURES,), name="left"), keras.Input((3,), name="right")
    both = layers.concatenate([layers.Dense(4, "tanh")(left), layers.Dense(3, "tanh")(right)])
    return keras.Model({"left": left, "right": right}, layers.Dense(CLASSES, "softmax", dtype="float32")(both))


def listed_inputs():
    left, right = keras.Input((FEATURES,)), keras.Input((3,))
    both = layers.concatenate([layers.Dense(4, "tanh")(left), layers.Dense(3, "tanh")(right)])
    return keras.Model([left, right], layers.Dense(CLASSES, "softmax", dtype="float32")(both))


def two_outputs():
    x = keras.Input((FEATURES,))
    middle = layers.Dense(6, "tanh")(x)
    size = layers.Dense(1, name="size", dtype="float32")(middle)
    sort = layers.Dense(CLASSES, "softmax", name="sort", dtype="float32")(middle)
    return keras.Model(x, {"size": size, "sort": sort})


def unbuilt():
    return keras.Sequential([layers.Dense(6, "tanh"), layers.Dense(CLASSES, "softmax", dtype="float32")])


class Subclassed(keras.Model):
    """Behaves otherwise in training, and adds a loss."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.first, self.second = layers.Dense(6, "tanh"), layers.Dense(CLASSES, "softmax", dtype="float32")
        self.drop = layers.Dropout(0.2)

    def call(self, x, training=False):
        hidden = self.drop(self.first(x), training=training)
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(keras.ops.cast(hidden, "float32"))))
        return self.second(hidden)


class OwnStep(keras.Model):
    """The train step of Keras' guide, with a metric of its own."""

    def __init__(self):
        super().__init__(name="own_step")
        self.first, self.second = layers.Dense(6, "tanh"), layers.Dense(1, dtype="float32")
        self.distance = keras.metrics.Mean(name="distance")

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            made = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=made, sample_weight=weights)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.distance.update_state(keras.ops.abs(y - made))
        return {"loss": loss, "distance": self.distance.result()}

    @property
    def metrics(self):
        return [*super().metrics, self.distance]


class OwnLoss(keras.Model):
    """Overrides `compute_loss`."""

    def __init__(self):
        super().__init__(name="own_loss")
        self.first, self.second = layers.Dense(6, "tanh"), layers.Dense(1, dtype="float32")

    def call(self, x):
        return self.second(self.first(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        plain = super().compute_loss(x, y, y_pred, sample_weight, training)
        return plain + 0.1 * keras.ops.mean(keras.ops.abs(y_pred))


class Counting(layers.Layer):
    """Counts batches in training, in a variable of its own."""

    def build(self, shape):
        self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(1.0)
        return x + keras.ops.cast(0.01 * keras.ops.sin(self.seen), x.dtype)


class Checked(layers.Layer):
    """Refuses large numbers, as careful layers do."""

    def call(self, x):
        with tf.control_dependencies(
            [tf.debugging.assert_less(tf.cast(x, tf.float32), 100.0, "the input is too large")]
        ):
            return tf.identity(x)


def counting():
    return _head(layers.Dense(4, "tanh"), Counting())


def checked():
    return _head(Checked(), layers.Dense(4, "tanh"))


class Padded(layers.Layer):
    """Makes rows of any length rows of the same length."""

    def call(self, x):
        return x.to_tensor(0, shape=[None, LENGTH]) if isinstance(x, tf.RaggedTensor) else x


def ragged():
    pooled = layers.GlobalAveragePooling1D()
    return keras.Sequential(
        [Padded(), layers.Embedding(IDS, 4), pooled, layers.Dense(CLASSES, "softmax", dtype="float32")]
    )


class Reshaped(layers.Layer):
    """Looks its ids up as one long row: their number is a part of the step."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(IDS, 4)

    def call(self, x):
        rows, length = ops.shape(x)
        return ops.reshape(self.table(ops.reshape(x, (rows * length,))), (rows, length, 4))


def towers():
    left, right = keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH + 1,), dtype="int32")
    looked_up, pooled = Reshaped(), layers.GlobalAveragePooling1D()
    both = layers.concatenate([pooled(looked_up(x)) for x in (left, right)])
    return keras.Model([left, right], layers.Dense(CLASSES, "softmax", dtype="float32")(both))


def coder():
    x = keras.Input((LENGTH, 3))
    _, *states = layers.LSTM(3, return_state=True)(x)
    made = layers.LSTM(3)(x, initial_state=states)
    return keras.Model(x, layers.Dense(CLASSES, "softmax", dtype="float32")(made))


def attention():
    ids = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(IDS, 4, mask_zero=True)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2, dropout=0.1)(x, x, use_causal_mask=True))
    pooled = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(CLASSES, "softmax", dtype="float32")(pooled))


def wrapped():
    return _head(
        layers.Bidirectional(layers.GRU(3, return_sequences=True)),
        layers.TimeDistributed(layers.Dense(3, "tanh")),
        layers.Flatten(),
        shape=(LENGTH, 3),
    )


def augmented():
    return _head(
        layers.RandomFlip(seed=1),
        layers.RandomContrast(0.2, value_range=(-4, 4), seed=2),
        layers.SeparableConv2D(2, 3, activation="tanh"),
        layers.GlobalMaxPooling2D(),
        shape=(8, 8, 1),
    )


def categories():
    return _head(layers.CategoryEncoding(IDS, "multi_hot"), layers.Dense(4, "tanh"), shape=(LENGTH,), dtype="int32")


def peaks():
    return _head(layers.Dense(3), layers.BatchNormalization(), layers.GlobalMaxPooling1D(), shape=(LENGTH, 3))


def unit_length():
    return _head(layers.LSTM(3), layers.UnitNormalization(), shape=(LENGTH, 3))


MSE = {"loss": "mse", "metrics": ("mae",), "classes": False, "bad": ("width",)}
FIRST_KINDS: dict[str, Kind] = {
    "mlp": Kind(mlp, _classified),
    "dropout": Kind(dropout, _classified),
    "batchnorm": Kind(batchnorm, _classified),
    "embedding": Kind(embedding, _ids, bad=("label", "id")),
    "convnet": Kind(convnet, _images, bad=("label",), splits=True),
    "lstm": Kind(lstm, _series),
    "gru": Kind(gru, _series),
    "words": Kind(
        words,
        _words,
        bad=("label",),
        whole=False,
        forms=("tensors", "dataset", "shuffled", "dropped", "unknown", "filtered", "repeated"),  # not objects
        splits=True,
    ),
    "regularized": Kind(regularized, _measured, **MSE),
    "noisy": Kind(noisy, _measured, **MSE),
    "two_inputs": Kind(two_inputs, _dict, bad=("label",)),
    "listed_inputs": Kind(listed_inputs, _list, bad=("label",)),
    "two_outputs": Kind(
        two_outputs,
        _two_targets,
        {"size": "mse", "sort": CROSSENTROPY},
        {"size": ["mae"], "sort": ["accuracy"]},
        {"loss_weights": {"size": 0.5, "sort": 1.0}},
        classes=False,
        bad=("width",),
    ),
    "unbuilt": Kind(unbuilt, _classified),
    "subclassed": Kind(Subclassed, _classified),
    "own_step": Kind(OwnStep, _measured, **MSE | {"metrics": None}),  # its step leaves the compiled ones alone
    "own_loss": Kind(OwnLoss, _measured, **MSE),
    "counting": Kind(counting, _classified),
    "ragged": Kind(ragged, _ragged, bad=("label",), whole=False, forms=("dataset", "shuffled", "unknown", "repeated")),
    "checked": Kind(checked, _classified, bad=("label", "value")),
    "texts": Kind(texts, _texts, bad=("label", "id"), longest=LONGEST),
    "tagger": Kind(tagger, _tagged, classes=False, bad=("id",), longest=LONGEST),
}
LATER_KINDS: dict[str, Kind] = {
    "towers": Kind(towers, _two_ids, bad=("label",)),
    "coder": Kind(coder, _series),
    "attention": Kind(attention, _ids, bad=("label", "id")),
    "wrapped": Kind(wrapped, _series),
    "augmented": Kind(augmented, _images, bad=("label",), splits=True),
    "categories": Kind(categories, _ids, bad=("label",)),
}
# Of defects that were found; no scenario is drawn with them.
KINDS_OF_CASES: dict[str, Kind] = {
    "peaks": Kind(peaks, _series),
    "unit_length": Kind(unit_length, _series),
}
KINDS = FIRST_KINDS | LATER_KINDS | KINDS_OF_CASES
