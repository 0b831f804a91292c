"""A tensorflow_datasets pipeline: a local builder, cached on disk, feeds a classifier compiled by XLA.

The builder makes its records from scikit-learn's handwritten digits, so that nothing is downloaded; for
your own data, replace `_generate_examples`. It needs scikit-learn: in a checkout, pip install ".[demo]".
"""

import sys
import tempfile

import keras
import numpy as np
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

import keras_xla


class Digits(tfds.core.GeneratorBasedBuilder):
    """1797 handwritten digits of 8 x 8 pixels (UCI)."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Tensor(shape=(8, 8), dtype=np.float32),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 1500), "test": self._generate_examples(1500, 1797)}

    def _generate_examples(self, start, stop):
        digits = load_digits()
        for i in range(start, stop):
            yield i, {"image": (digits.images[i] / 16).astype("float32"), "label": int(digits.target[i])}


def main(data_dir: str, epochs: int = 10) -> float:
    builder = Digits(data_dir=data_dir)
    builder.download_and_prepare()
    train = builder.as_dataset(split="train", as_supervised=True).cache().shuffle(1500, seed=0).batch(64).prefetch(2)
    test = builder.as_dataset(split="test", as_supervised=True).batch(64).cache()

    keras.utils.set_random_seed(0)
    layers = [keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = keras_xla.compile(keras.Sequential(layers), optimizer="adam", loss=loss, metrics=["accuracy"])
    model.fit(train, epochs=epochs, validation_data=test, verbose=2)
    _, accuracy = model.evaluate(test, verbose=0)
    print(f"test accuracy {accuracy:.3f}")
    print(keras_xla.model_report(model))
    return accuracy


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
