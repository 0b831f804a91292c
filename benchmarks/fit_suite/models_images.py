"""Models of images: convolutions, a vision transformer, a variational autoencoder with its own `train_step`."""

import keras
import tensorflow as tf
from case import Case, seeded
from data import mnist, tinted_digits
from keras import layers, ops
from models_dense import classifier


def _digit_images() -> dict:
    digits = mnist()
    return dict(x=digits["x"][..., None].astype("float32") / 255, y=digits["y"])


def cnn() -> Case:
    """The convnet for MNIST: two convolutions with pooling, dropout."""

    @seeded
    def make():
        model = keras.Sequential([keras.Input((28, 28, 1))])
        for filters in (32, 64):
            model.add(layers.Conv2D(filters, 3, activation="relu"))
            model.add(layers.MaxPooling2D(2))
        for layer in (layers.Flatten(), layers.Dropout(0.5), layers.Dense(10, activation="softmax")):
            model.add(layer)
        return model

    return Case(make, classifier, _digit_images(), batch_size=64)


def mobilenet_v2() -> Case:
    """`keras.applications.MobileNetV2` from scratch, alpha 0.35, on 32x32 images (tinted digits)."""

    @seeded
    def make():
        inputs = keras.Input((32, 32, 3))
        scaled = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
        body = keras.applications.MobileNetV2(input_shape=(32, 32, 3), alpha=0.35, weights=None, classes=10)
        return keras.Model(inputs, body(scaled))

    return Case(make, classifier, tinted_digits(), batch_size=32)


def resnet() -> Case:
    """A small residual network on 32x32 images (tinted digits): three stages of one block."""

    def convolved(x, filters, strides=1):
        x = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    @seeded
    def make():
        inputs = keras.Input((32, 32, 3))
        x = layers.ReLU()(convolved(layers.Rescaling(1 / 255)(inputs), 16))
        for stage, filters in enumerate((16, 32, 64)):
            strides = 2 if stage else 1
            inner = layers.ReLU()(convolved(x, filters, strides))
            inner = convolved(inner, filters)
            if stage:
                x = layers.Conv2D(filters, 1, strides=strides)(x)
            x = layers.ReLU()(layers.add([inner, x]))
        outputs = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, outputs)

    return Case(make, classifier, tinted_digits(), batch_size=32)


class Patches(keras.layers.Layer):
    """Cuts images into square patches, each a row of its pixels."""

    def __init__(self, size: int, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def call(self, images):
        _, height, width, channels = images.shape
        rows, columns, size = height // self.size, width // self.size, self.size
        grid = ops.reshape(images, (-1, rows, size, columns, size, channels))
        grid = ops.transpose(grid, (0, 1, 3, 2, 4, 5))
        return ops.reshape(grid, (-1, rows * columns, size * size * channels))


class PatchEncoder(keras.layers.Layer):
    """Projects patches and adds what is learned of their positions."""

    def __init__(self, patches: int, width: int, **kwargs):
        super().__init__(**kwargs)
        self.patches = patches
        self.projection = layers.Dense(width)
        self.positions = layers.Embedding(patches, width)

    def call(self, x):
        return self.projection(x) + self.positions(ops.expand_dims(ops.arange(self.patches), 0))


def transformer_blocks(x, width: int, count: int):
    """Blocks of a vision transformer: attention and a feed-forward network, each behind a norm, with a shortcut."""
    for _ in range(count):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.add([x, layers.MultiHeadAttention(4, width // 4, dropout=0.1)(normed, normed)])
        hidden = layers.LayerNormalization(epsilon=1e-6)(x)
        for units in (2 * width, width):
            hidden = layers.Dropout(0.1)(layers.Dense(units, activation="gelu")(hidden))
        x = layers.add([x, hidden])
    return layers.LayerNormalization(epsilon=1e-6)(x)


def vit() -> Case:
    """A small vision transformer on 32x32 images (tinted digits): 16 patches, three blocks, gelu, dropout."""
    width = 64

    @seeded
    def make():
        inputs = keras.Input((32, 32, 3))
        x = Patches(8)(layers.Rescaling(1 / 127.5, offset=-1)(inputs))
        x = layers.Flatten()(transformer_blocks(PatchEncoder(16, width)(x), width, 3))
        x = layers.Dropout(0.3)(layers.Dense(128, activation="gelu")(x))
        return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))

    return Case(make, classifier, tinted_digits(), batch_size=32)


def cct() -> Case:
    """A compact convolutional transformer on 32x32 images (tinted digits): two convolutions make 64 tokens of them."""
    width = 64

    @seeded
    def make():
        inputs = keras.Input((32, 32, 3))
        x = layers.Rescaling(1 / 255)(inputs)
        for filters in (width // 2, width):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False, activation="relu")(x)
            x = layers.MaxPooling2D(3, 2, padding="same")(x)
        x = PatchEncoder(64, width)(layers.Reshape((64, width))(x))
        x = transformer_blocks(x, width, 2)
        weights = layers.Softmax(axis=1)(layers.Dense(1)(x))  # pools the sequence
        x = layers.Flatten()(layers.Dot(axes=1)([weights, x]))
        return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))

    return Case(make, classifier, tinted_digits(), batch_size=32)


class Sampling(keras.layers.Layer):
    """Draws a latent vector from its mean and the logarithm of its variance."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, mean, log_variance):
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)


class VariationalAutoencoder(keras.Model):
    """Encoder and decoder with a loss of two parts and a `train_step` of its own."""

    def __init__(self, encoder: keras.Model, decoder: keras.Model, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "reconstruction_loss", "kl_loss")]

    @property
    def metrics(self):
        return self.trackers

    def call(self, images):
        return self.decoder(self.encoder(images)[0])

    def train_step(self, images):
        with tf.GradientTape() as tape:
            mean, log_variance, latent = self.encoder(images, training=True)
            crossentropy = keras.losses.binary_crossentropy(images, self.decoder(latent, training=True))
            reconstruction = ops.mean(ops.sum(crossentropy, axis=(1, 2)))
            kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            kl = ops.mean(ops.sum(kl, axis=1))
            loss = reconstruction + kl
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        for tracker, value in zip(self.trackers, (loss, reconstruction, kl), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def vae() -> Case:
    """A convolutional variational autoencoder of MNIST, two latent numbers."""

    @seeded
    def make():
        inputs = x = keras.Input((28, 28, 1))
        for filters in (32, 64):
            x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
        x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
        mean, log_variance = layers.Dense(2, name="mean")(x), layers.Dense(2, name="log_variance")(x)
        encoder = keras.Model(inputs, [mean, log_variance, Sampling()(mean, log_variance)], name="encoder")
        latent = keras.Input((2,))
        x = layers.Reshape((7, 7, 64))(layers.Dense(7 * 7 * 64, activation="relu")(latent))
        for filters in (64, 32):
            x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
        outputs = layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid")(x)
        return VariationalAutoencoder(encoder, keras.Model(latent, outputs, name="decoder"))

    data = dict(x=_digit_images()["x"])
    own_step = {"jax": "its `train_step` is written for TensorFlow"}
    return Case(make, lambda: dict(optimizer=keras.optimizers.Adam()), data, batch_size=64, not_on=own_step)
