"""Forecasting with an LSTM over windows of a series."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(8)
time = np.arange(1200)
series = (np.sin(time / 20) + 0.1 * np.random.normal(size=1200)).astype("float32")[:, None]
past = 20


def windows(values):
    return keras.utils.timeseries_dataset_from_array(values[:-past], values[past:], past, batch_size=64)


train, validation = windows(series[:900]), windows(series[900:])
inputs = keras.layers.Input(shape=(past, 1))
hidden = keras.layers.LSTM(16)(inputs)
model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(1)(hidden), name="forecast")
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss="mse")
history = model.fit(train, epochs=3, validation_data=validation, verbose=0)
print(json.dumps({**history.history, "next": model.predict(series[None, :past], verbose=0).tolist()}))
