"""A training loop written from scratch, with tf.function, metrics and a validation step."""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(6)
random = np.random.default_rng(6)
x = random.normal(size=(1032, 16)).astype("float32")
y = (x[:, :4].sum(axis=1) > 0).astype("int32") + (x[:, 4] > 1)
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1032, seed=6).batch(64)
validation = tf.data.Dataset.from_tensor_slices((x[:200], y[:200])).batch(64)

inputs = keras.Input(shape=(16,))
h = keras.layers.Dense(64, activation="relu")(inputs)
h = keras.layers.Dropout(0.1)(h)
model = keras.Model(inputs, keras.layers.Dense(3)(h))
optimizer = keras.optimizers.Adam(learning_rate=1e-2)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_metric = keras.metrics.SparseCategoricalAccuracy()
validation_metric = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    grads = tape.gradient(loss, model.trainable_weights)
    optimizer.apply(grads, model.trainable_weights)
    train_metric.update_state(y, logits)
    return loss


@tf.function
def test_step(x, y):
    validation_metric.update_state(y, model(x, training=False))


results = []
for _ in range(4):
    for batch_x, batch_y in train:
        loss = train_step(batch_x, batch_y)
    for batch_x, batch_y in validation:
        test_step(batch_x, batch_y)
    results.append([float(loss), float(train_metric.result()), float(validation_metric.result())])
    train_metric.reset_state()
    validation_metric.reset_state()
print(json.dumps({"epochs": results}))
