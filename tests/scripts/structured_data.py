"""Structured data from a data frame's columns, preprocessed inside the model."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(4)
random = np.random.default_rng(4)
rows = 1000
table = {
    "age": random.integers(18, 90, rows).astype("float32"),
    "pressure": random.normal(120, 20, rows).astype("float32"),
    "thal": random.choice(["fixed", "normal", "reversible"], rows),
    "sex": random.integers(0, 2, rows).astype("int64"),
}
target = ((table["age"] > 50) ^ (table["thal"] == "normal")).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((table, target)).shuffle(rows, seed=4)
train, validation = dataset.take(800).batch(64), dataset.skip(800).batch(64)

inputs, encoded = {}, []
for name in ("age", "pressure"):
    inputs[name] = keras.Input(shape=(1,), name=name)
    normalize = layers.Normalization()
    normalize.adapt(table[name][:, None])
    encoded.append(normalize(inputs[name]))
inputs["thal"] = keras.Input(shape=(1,), name="thal", dtype="string")
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(table["thal"])
encoded.append(lookup(inputs["thal"]))
inputs["sex"] = keras.Input(shape=(1,), name="sex", dtype="int64")
encoded.append(layers.CategoryEncoding(num_tokens=2, output_mode="one_hot")(inputs["sex"]))

x = layers.Dense(32, activation="relu")(layers.concatenate(encoded))
x = layers.Dropout(0.2)(x)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x), name="patients")
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
data = [part.map(lambda x, y: ({k: tf.expand_dims(v, -1) for k, v in x.items()}, y)) for part in (train, validation)]
history = model.fit(data[0], epochs=3, validation_data=data[1], verbose=0)
sample = {k: tf.constant([[v]]) for k, v in {"age": 60.0, "pressure": 145.0, "thal": "fixed", "sex": 1}.items()}
print(json.dumps({**history.history, "sample": model.predict(sample, verbose=0).tolist()}))
