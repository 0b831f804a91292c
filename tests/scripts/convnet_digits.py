"""Image classification with a small convnet, as in the gallery's MNIST example."""

import json

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
digits = load_digits()
images = np.expand_dims(digits.images.astype("float32") / 16, -1)
labels = keras.utils.to_categorical(digits.target, 10)
train, test = slice(0, 1500), slice(1500, None)

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(32, kernel_size=(2, 2), activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ],
    name="convnet",
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(images[train], labels[train], batch_size=128, epochs=3, validation_split=0.1, verbose=0)
loss, accuracy = model.evaluate(images[test], labels[test], verbose=0)
print(json.dumps({"train": history.history["loss"], "test": loss, "accuracy": accuracy}))
