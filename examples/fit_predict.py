"""A plain Keras script: train, evaluate and predict a classifier of handwritten digits, without and with XLA.

The data is scikit-learn's copy of the UCI handwritten digits (1797 images of 8 x 8). It needs scikit-learn: in a
checkout, pip install ".[demo]". The model is a small transformer that reads a digit row by row.
"""

import sys
import time

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_xla

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 60


def data():
    images, labels = load_digits().images, load_digits().target
    return train_test_split((images / 16).astype("float32"), labels, test_size=0.2, random_state=0, stratify=labels)


def classifier() -> keras.Model:
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8))
    x = layers.Dense(64)(image) + layers.Embedding(8, 64)(keras.ops.arange(8))  # (batch, rows, features)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(num_heads=4, key_dim=16)(y, y)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(64)(layers.Dense(128, activation="gelu")(y))
    return keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


class EpochTimes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)


def run(label: str, compile) -> tuple[tuple[float, float], keras.Model]:
    """Seconds of the whole run and of a median epoch, and the trained model."""
    x_train, x_test, y_train, y_test = data()
    model, epochs = classifier(), EpochTimes()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compile(model, optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
    start = time.perf_counter()
    model.fit(x_train, y_train, batch_size=32, epochs=EPOCHS, verbose=0, callbacks=[epochs])
    predicted = model.predict(x_test, verbose=0).argmax(axis=-1)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    total, epoch = time.perf_counter() - start, float(np.median(epochs.seconds))
    assert abs(accuracy - np.mean(predicted == y_test)) < 1e-6
    print(f"{label:30} {total:5.1f} s in all, {epoch * 1e3:4.0f} ms an epoch, test accuracy {accuracy:.3f}", flush=True)
    return (total, epoch), model


def main():
    plain, _ = run("model.compile(...)", lambda model, **arguments: model.compile(**arguments))
    fast, model = run("keras_xla.compile(model, ...)", keras_xla.compile)
    print(f"{plain[0] / fast[0]:.2f}x faster in all, {plain[1] / fast[1]:.2f}x an epoch.")
    print("\nWhat was measured and chosen (included in the time above):")
    print(keras_xla.model_report(model))


if __name__ == "__main__":
    main()
