"""Transfer learning: a pretrained base, frozen, a new head, then fine-tuning of everything."""

import json

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(7)
digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target
small, large = y < 5, y >= 5

base = keras.Sequential(
    [keras.Input(shape=(64,)), layers.Dense(64, activation="relu"), layers.BatchNormalization(), layers.Dense(32)],
    name="base",
)
pretraining = keras.Sequential([base, layers.Dense(5)], name="pretraining")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
pretraining.compile(optimizer="adam", loss=loss)
before = pretraining.fit(x[small], y[small], epochs=2, verbose=0)

base.trainable = False
inputs = keras.Input(shape=(64,))
outputs = layers.Dense(5)(layers.Dropout(0.2)(base(inputs, training=False)))
model = keras.Model(inputs, outputs, name="transfer")
model.compile(optimizer=keras.optimizers.Adam(), loss=loss, metrics=["accuracy"])
frozen = model.fit(x[large], y[large] - 5, epochs=2, verbose=0)

base.trainable = True
model.compile(optimizer=keras.optimizers.Adam(1e-5), loss=loss, metrics=["accuracy"])
tuned = model.fit(x[large], y[large] - 5, epochs=2, validation_split=0.2, verbose=0)
print(json.dumps({"before": before.history, "frozen": frozen.history, "tuned": tuned.history}))
