"""Models of dense layers: digits, tabular data, denoising."""

import keras
import numpy as np
from case import Case, seeded
from data import flights, mnist
from keras import layers


def classifier(learning_rate: float = 1e-3) -> dict:
    """How all classifiers of single labels are compiled."""
    return dict(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=["accuracy"],
    )


def _flat_digits() -> dict:
    digits = mnist()
    return dict(x=digits["x"].reshape(-1, 784).astype("float32") / 255, y=digits["y"])


def mlp(dropout: float = 0.2) -> Case:
    """MNIST, two layers of 512 with dropout."""

    @seeded
    def make():
        model = keras.Sequential([keras.Input((784,))])
        for _ in range(2):
            model.add(layers.Dense(512, activation="relu"))
            if dropout:
                model.add(layers.Dropout(dropout))
        model.add(layers.Dense(10, activation="softmax"))
        return model

    return Case(make, classifier, _flat_digits(), batch_size=128)


def mlp_plain() -> Case:
    """The same without dropout, which leaves no random numbers."""
    return mlp(dropout=0.0)


def autoencoder() -> Case:
    """Dense denoising of MNIST."""
    clean = _flat_digits()["x"]
    noise = np.random.default_rng(0).normal(0, 0.4, clean.shape).astype("float32")

    @seeded
    def make():
        inputs = x = keras.Input((784,))
        for units in (512, 128, 32, 128, 512):
            x = layers.LeakyReLU()(layers.Dense(units)(x))
        return keras.Model(inputs, layers.Dense(784, activation="sigmoid")(x))

    data = dict(x=np.clip(clean + noise, 0, 1), y=clean)
    return Case(make, lambda: dict(optimizer="adam", loss="binary_crossentropy"), data, batch_size=128)


def _binary() -> dict:
    return dict(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])


def tabular_batchnorm() -> Case:
    """Will a flight be late? 66 numbers and one-hot columns, three layers with batch normalization."""
    table = flights()
    wide = [np.eye(13)[table["month"]][:, 1:], np.eye(7)[table["weekday"]], np.eye(24)[table["hour"]]]
    for name in ("carrier", "origin"):
        values, index = np.unique(table[name], return_inverse=True)
        wide.append(np.eye(len(values))[index])
    numbers = np.stack([table[name] for name in ("minute", "hour", "distance", "month")], axis=1)
    wide.append((numbers - numbers.mean(0)) / numbers.std(0))
    x = np.concatenate([part.astype("float32") for part in wide], axis=1)

    @seeded
    def make():
        model = keras.Sequential([keras.Input((x.shape[1],))])
        for _ in range(3):
            model.add(layers.Dense(256, use_bias=False))
            model.add(layers.BatchNormalization())
            model.add(layers.Activation("relu"))
        model.add(layers.Dense(1, activation="sigmoid"))
        return model

    return Case(make, _binary, dict(x=x, y=table["late"][:, None]), batch_size=256)


def keras_19953() -> Case:
    """Ten layers of 128 with dropout on four random numbers: https://github.com/keras-team/keras/issues/19953."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(250_000, 4)), rng.choice([0.0, 1.0], size=250_000)

    @seeded
    def make():
        model = keras.Sequential()
        for _ in range(10):
            model.add(layers.Dense(128, activation="relu"))
            model.add(layers.Dropout(rate=0.1))
        model.add(layers.Dense(1, activation="sigmoid"))
        return model

    def arguments():
        return dict(
            optimizer=keras.optimizers.Adam(0.001),
            loss=keras.losses.BinaryCrossentropy(label_smoothing=0.05),
            metrics=[keras.metrics.AUC(name="auc")],
        )

    return Case(make, arguments, dict(x=x, y=y), batch_size=500)


STRINGS = ("carrier", "origin", "dest")
COUNTS = {"month": 13, "weekday": 7, "hour": 24}
NUMBERS = ("minute", "distance")


def wide_and_deep() -> Case:
    """Will a flight be late? Strings looked up inside the model, counts one-hot, numbers; from a `tf.data` pipeline."""
    table = flights()
    x = {name: table[name][:, None] for name in (*STRINGS, *COUNTS)}
    for name in NUMBERS:
        values = table[name].astype("float32")[:, None]
        x[name] = (values - values.mean()) / values.std()

    @seeded
    def make():
        inputs, wide, deep = {}, [], []
        for name in STRINGS:
            inputs[name] = keras.Input((1,), dtype="string", name=name)
            vocabulary = sorted(set(table[name].tolist()))
            index = layers.StringLookup(vocabulary=vocabulary)(inputs[name])
            wide.append(layers.CategoryEncoding(len(vocabulary) + 1, output_mode="one_hot")(index))
            deep.append(layers.Flatten()(layers.Embedding(len(vocabulary) + 1, 16)(index)))
        for name, count in COUNTS.items():
            inputs[name] = keras.Input((1,), dtype="int32", name=name)
            wide.append(layers.CategoryEncoding(count, output_mode="one_hot")(inputs[name]))
            deep.append(layers.Flatten()(layers.Embedding(count, 8)(inputs[name])))
        for name in NUMBERS:
            inputs[name] = keras.Input((1,), name=name)
            deep.append(inputs[name])
        hidden = layers.concatenate(deep)
        for units in (256, 128):
            hidden = layers.Dropout(0.1)(layers.Dense(units, activation="relu")(hidden))
        merged = layers.concatenate([layers.BatchNormalization()(layers.concatenate(wide)), hidden])
        return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(merged))

    data, no_strings = dict(x=x, y=table["late"][:, None]), {"jax": "JAX has no strings to look up inside the model"}
    return Case(make, _binary, data, batch_size=256, pipeline=True, not_on=no_strings)
