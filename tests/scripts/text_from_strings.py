"""Text classification from raw strings: TextVectorization in the pipeline, then in a model for strings."""

import json
import random

import keras
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(3)
chance = random.Random(3)
good, bad = ["great", "lovely", "fun", "moving"], ["dull", "awful", "boring", "weak"]
neutral = ["film", "plot", "actor", "attention_inputs", "music", "the", "a", "very"]
texts, labels = [], []
for i in range(800):
    words = chance.choices(neutral, k=chance.randint(3, 15)) + chance.choices(good if i % 2 else bad, k=2)
    chance.shuffle(words)
    texts.append(" ".join(words))
    labels.append(i % 2)

vectorize = layers.TextVectorization(max_tokens=50, output_mode="int", output_sequence_length=16)
raw = tf.data.Dataset.from_tensor_slices((texts, labels))
vectorize.adapt(raw.batch(64).map(lambda x, y: x))
data = raw.shuffle(800, seed=3).batch(32).map(lambda x, y: (vectorize(x), y)).prefetch(2)

inputs = keras.Input(shape=(None,), dtype="int64")
x = layers.Embedding(50, 16)(inputs)
x = layers.GlobalAveragePooling1D()(x)
x = layers.Dropout(0.2)(x)
x = layers.Dense(16, activation="relu")(x)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x), name="classifier_of_ids")
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(data, epochs=3, verbose=0)

strings = keras.Input(shape=(1,), dtype="string")
end_to_end = keras.Model(strings, model(vectorize(strings)), name="classifier_of_strings")
end_to_end.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
more = end_to_end.fit(raw.batch(50), epochs=2, verbose=0)
loss, accuracy = end_to_end.evaluate(raw.batch(50), verbose=0)
probabilities = end_to_end.predict(tf.constant([["a great and lovely film"], ["awful plot"]]), verbose=0)
results = {"ids": history.history["loss"], "strings": more.history["loss"], "test": loss, "accuracy": accuracy}
print(json.dumps({**results, "probabilities": probabilities.tolist()}))
