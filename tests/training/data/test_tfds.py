"""Data of TensorFlow Datasets: the losses of plain Keras, and a few executables for all lengths."""

import keras
import numpy as np
import pytest
import tensorflow_datasets as tfds

from keras_xla.training.compile import compile
from keras_xla.training.data.bucket_lengths import bucket_lengths
from tests.training.helpers import LOSS, Log

layers = keras.layers
PLAIN = {"jit_compile": keras.backend.backend() == "jax"}  # on TensorFlow Keras' own XLA would compile for each length
LENGTHS = [3, 9, 5, 12, 7, 2, 10, 4, 11, 6, 8, 1]
SIZES = (8, 16)
PADDED_TO = [16, 16, 8, 16, 16, 8]  # batches of two rows
rng = np.random.default_rng(0)
IDS = [rng.integers(1, 20, length).tolist() for length in LENGTHS]
IMAGES = rng.integers(0, 256, (len(LENGTHS), 8, 8, 1), dtype="uint8")


class Notes(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Ids of many lengths, a number, an image and a class; the configuration names what goes with the class."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ("ids", "image")]

    def _info(self):
        features = {
            "ids": tfds.features.Sequence(np.int32),
            "number": np.float32,
            "image": tfds.features.Image(shape=(8, 8, 1)),
            "label": tfds.features.ClassLabel(names=["even", "odd"]),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=(self.builder_config.name, "label"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, (ids, image) in enumerate(zip(IDS, IMAGES, strict=True)):
            yield i, {"ids": ids, "number": i / 10, "image": image, "label": i % 2}


def prepared(folder, config):
    builder = Notes(config=config, data_dir=folder)
    builder.download_and_prepare()
    return builder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("texts"), "ids")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("images"), "image")


def padded(builder):
    return builder.as_dataset(split="train", as_supervised=True).padded_batch(2)


def batched_by_tfds(builder):
    return builder.as_dataset(split="train", as_supervised=True, batch_size=2)


def ragged(builder):
    return builder.as_dataset(split="train", as_supervised=True).ragged_batch(2)


def made_dense(builder):
    return ragged(builder).map(lambda ids, label: (ids.to_tensor(), label))


def named(builder):
    def pair(row):
        return {"ids": row["ids"], "number": row["number"]}, row["label"]

    return builder.as_dataset(split="train").map(pair).padded_batch(2)


def of_ids():
    keras.utils.set_random_seed(0)
    body = [layers.Embedding(20, 4, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(2)]
    return keras.Sequential([keras.Input((None,), dtype="int32"), *body])


def of_names():
    keras.utils.set_random_seed(0)
    ids, number = keras.Input((None,), dtype="int32", name="ids"), keras.Input((1,), name="number")
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4, mask_zero=True)(ids))
    return keras.Model({"ids": ids, "number": number}, layers.Dense(2)(layers.Concatenate()([pooled, number])))


def of_images():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(2)])


def losses(compile_, model, data, epochs=2, **options):
    compile_(model, "sgd", LOSS, **options)
    return model.fit(data, epochs=epochs, verbose=0).history["loss"]


class TestLengths:
    @pytest.mark.parametrize("batches", [padded, batched_by_tfds, ragged], ids=lambda batches: batches.__name__)
    def test_become_sizes_and_rows_stay_as_they_are(self, texts, batches):
        data = bucket_lengths(batches(texts), SIZES)
        assert int(data.cardinality()) == 6
        made = list(tfds.as_numpy(data))
        assert [ids.shape for ids, _ in made] == [(2, size) for size in PADDED_TO]
        assert [[i for i in row.tolist() if i] for ids, _ in made for row in ids] == IDS
        assert [int(label) for _, labels in made for label in labels] == [0, 1] * 6

    @pytest.mark.parametrize(
        ("make", "batches", "plain"),
        [(of_ids, padded, padded), (of_names, named, named), (of_ids, ragged, made_dense)],
        ids=["pairs", "features by name", "ragged"],
    )
    @pytest.mark.quick_on_jax
    def test_losses_are_those_of_plain_keras_from_one_executable_for_each_size(self, texts, make, batches, plain):
        log = Log()
        made = losses(compile, make(), bucket_lengths(batches(texts), SIZES), jit_compile=True)
        assert log.kinds() == ["train"] * len(SIZES)
        expected = losses(keras.Model.compile, make(), plain(texts), **PLAIN)
        np.testing.assert_allclose(made, expected, rtol=1e-5)

    def test_only_features_that_vary_are_padded(self, texts):
        (x, _), *_ = tfds.as_numpy(bucket_lengths(named(texts), SIZES))
        assert {name: value.shape for name, value in x.items()} == {"ids": (2, 16), "number": (2,)}


class TestImages:
    def run(self, compile_, *data, epochs=2, **options):
        model = of_images()
        compile_(model, "sgd", LOSS, metrics=["accuracy"], **options)
        given = {"batch_size": 5, "shuffle": False} if len(data) > 1 else {}
        history = model.fit(*data, epochs=epochs, verbose=0, **given).history
        return [history, model.get_weights()]

    def batches(self, images):
        """Of 5, 5 and 2 rows."""
        return images.as_dataset(split="train", as_supervised=True).batch(5)

    def arrays(self, images):
        return tfds.as_numpy(images.as_dataset(split="train", as_supervised=True, batch_size=-1))

    def same(self, made, expected):
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), made, expected)

    def test_the_smaller_last_batch_is_filled_up(self, images):
        log = Log()
        made = self.run(compile, self.batches(images), jit_compile=True)
        assert log.kinds() == ["train"]
        self.same(made, self.run(keras.Model.compile, self.batches(images), **PLAIN))

    def test_without_options(self, images):
        made = self.run(compile, self.batches(images))
        self.same(made, self.run(keras.Model.compile, self.batches(images), **PLAIN))

    def test_a_whole_split_as_arrays(self, images):
        x, y = self.arrays(images)
        assert np.array_equal(x, IMAGES) and y.tolist() == [0, 1] * 6
        self.same(self.run(compile, x, y), self.run(keras.Model.compile, self.batches(images), **PLAIN))


class TestNumpyBatches:
    def test_lengths_become_sizes(self, texts):
        batches = tfds.as_numpy(padded(texts))
        assert [ids.shape[1] for ids, _ in batches] == [9, 12, 7, 10, 11, 8]
        made = [np.asarray(ids) for ids, _ in bucket_lengths(batches, SIZES)]
        assert [ids.shape[1] for ids in made] == PADDED_TO

    def test_losses_of_an_epoch(self, texts):
        log = Log()
        data = bucket_lengths(tfds.as_numpy(padded(texts)), SIZES)
        made = losses(compile, of_ids(), data, epochs=1, jit_compile=True)
        assert log.kinds() == ["train"] * len(SIZES)
        expected = losses(keras.Model.compile, of_ids(), padded(texts), epochs=1, **PLAIN)
        np.testing.assert_allclose(made, expected, rtol=1e-5)

    def test_ragged_ones_are_for_the_dataset(self, texts):
        with pytest.raises(TypeError, match=r"ragged tensor in a batch.*Ragged tensors are for a tf\.data\.Dataset"):
            bucket_lengths(tfds.as_numpy(ragged(texts)), SIZES)
