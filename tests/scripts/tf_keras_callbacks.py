"""tf.keras with callbacks: early stopping, checkpoints, a learning rate that adapts; and the best model loaded."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(10)
x = np.random.normal(size=(400, 10)).astype("float32")
y = (x @ np.arange(10) / 10 + 0.1 * np.random.normal(size=400)).astype("float32")

model = tf.keras.Sequential(
    [tf.keras.Input(shape=(10,)), tf.keras.layers.Dense(32, activation="tanh"), tf.keras.layers.Dense(1)],
    name="regression",
)
model.compile(optimizer=tf.keras.optimizers.RMSprop(0.01), loss="mse", metrics=["mae"])
with tempfile.TemporaryDirectory() as folder:
    best = os.path.join(folder, "best.keras")
    history = model.fit(
        x,
        y,
        validation_split=0.25,
        epochs=12,
        batch_size=50,
        verbose=0,
        callbacks=[
            tf.keras.callbacks.ModelCheckpoint(best, monitor="val_loss", save_best_only=True),
            tf.keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.05),
            tf.keras.callbacks.EarlyStopping(patience=2, min_delta=0.05, restore_best_weights=True),
        ],
    )
    loaded = tf.keras.models.load_model(best)
test = loaded.evaluate(x, y, batch_size=50, verbose=0)
loaded.fit(x, y, batch_size=50, epochs=1, verbose=0)
after = loaded.evaluate(x, y, batch_size=50, verbose=0)
print(json.dumps({"epochs": len(history.epoch), "val_loss": history.history["val_loss"], "test": test, "after": after}))
