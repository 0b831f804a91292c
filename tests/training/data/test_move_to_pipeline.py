"""move_to_pipeline: leading layers that XLA cannot compile run in tf.data, and the rest compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_xla.diagnosis.explain import explain
from keras_xla.training.compile import compile
from keras_xla.training.data.move_to_pipeline import move_to_pipeline
from tests.training.helpers import Log

layers = keras.layers
ON_JAX = keras.backend.backend() == "jax"
tensorflow_only = pytest.mark.skipif(ON_JAX, reason="JAX has no strings, and no operation without a kernel")
CITIES = ["Rome", "Oslo", "Lima"]
rng = np.random.default_rng(0)
CITY = rng.choice([*CITIES, "Bonn"], (32, 1))
AGE = rng.normal(size=(32, 2)).astype("float32")
Y = rng.normal(size=(32, 1)).astype("float32")
IMAGES = rng.uniform(size=(16, 8, 8, 3)).astype("float32")


def wide():
    """Strings through a lookup, numbers beside them."""
    keras.utils.set_random_seed(0)
    city, age = keras.Input((1,), dtype="string", name="city"), keras.Input((2,), name="age")
    ids = layers.StringLookup(vocabulary=CITIES, name="lookup")(city)
    hidden = layers.Concatenate()([layers.Flatten()(layers.Embedding(4, 3)(ids)), age])
    return keras.Model({"city": city, "age": age}, layers.Dense(1)(layers.Dense(8, "relu")(hidden)), name="wide")


def wide_data():
    return tf.data.Dataset.from_tensor_slices(({"city": CITY, "age": AGE}, Y)).batch(8)


def pictures(*more):
    keras.utils.set_random_seed(0)
    augment = [layers.Rescaling(2.0), layers.RandomRotation(0.2, seed=1, name="turn"), *more]
    return keras.Sequential([keras.Input((8, 8, 3)), *augment, layers.Flatten(), layers.Dense(1)])


def values(dataset):
    return [keras.tree.map_structure(np.asarray, element) for element in dataset.as_numpy_iterator()]


def test_what_the_rest_gets_is_named_after_the_inputs():
    preprocess, rest = move_to_pipeline(wide())
    assert [layer.name for layer in preprocess.layers] == ["lookup"]
    assert repr(preprocess) == "<Preprocess of 'wide': lookup>"
    spec = wide_data().map(preprocess).element_spec
    assert {name: (tuple(x.shape), x.dtype) for name, x in spec[0].items()} == {
        "age": ((None, 2), tf.float32),
        "city": ((None, 1), tf.int64),
    }
    assert {name: x.shape for name, x in rest.input.items()} == {"age": (None, 2), "city": (None, 1)}
    assert explain(rest)
    assert rest.name == "wide"


def test_training_the_rest_trains_the_model():
    log, model = Log(), wide()
    preprocess, rest = move_to_pipeline(model)
    before = [np.array(weight) for weight in model.get_weights()]
    compile(rest, "sgd", "mse", jit_compile=True)
    rest.fit(wide_data().map(preprocess), epochs=2, verbose=0)
    assert log.kinds() == ["train"]
    after = model.get_weights()
    assert [id(weight) for weight in rest.weights] == [id(weight) for weight in model.weights]
    assert not any(map(np.array_equal, before, after))


@tensorflow_only
def test_losses_are_those_of_the_whole_model_in_plain_keras():
    model = wide()
    model.compile("adam", "mse")
    expected = model.fit(wide_data(), epochs=3, verbose=0).history["loss"]
    answers = model.predict(wide_data(), verbose=0)
    preprocess, rest = move_to_pipeline(wide())
    compile(rest, "adam", "mse", jit_compile=True)
    data = wide_data().map(preprocess)
    np.testing.assert_allclose(rest.fit(data, epochs=3, verbose=0).history["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(rest.predict(data, verbose=0), answers, rtol=1e-4, atol=1e-6)


def test_a_text_classifier():
    keras.utils.set_random_seed(0)
    text = layers.TextVectorization(vocabulary=["good", "bad", "film"], output_sequence_length=4)
    body = [layers.Embedding(6, 3, mask_zero=True), layers.LSTM(4), layers.Dense(1)]
    model = keras.Sequential([keras.Input((), dtype="string"), text, *body])
    preprocess, rest = move_to_pipeline(model)
    assert type(rest) is keras.Sequential and rest.layers == body
    (made,) = values(tf.data.Dataset.from_tensors(np.array(["a good film", "bad bad"])).map(preprocess))
    assert made.tolist() == [[1, 2, 4, 0], [3, 3, 0, 0]]
    compile(rest, "sgd", "mse", jit_compile=True)
    assert rest.predict(made, verbose=0).shape == (2, 1)


def lookup_of_ints():
    x = keras.Input((1,), dtype="int64")
    return x, layers.IntegerLookup(vocabulary=[5, 7])(x), np.array([[7], [5], [1]]), [[2], [1], [0]]


def hashing():
    x = keras.Input((1,), dtype="string")
    return x, layers.Hashing(num_bins=1)(x), np.array([["a"], ["b"]]), [[0], [0]]


def crossing():
    x = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int64")
    made = np.array([["a"], ["b"]]), np.array([[1], [2]])
    return x, layers.HashedCrossing(num_bins=1)(x), made, [[0], [0]]


@pytest.mark.parametrize("build", [lookup_of_ints, hashing, crossing])
def test_other_layers_that_look_up_and_hash(build):
    inputs, ids, x, expected = build()
    preprocess, rest = move_to_pipeline(keras.Model(inputs, layers.Embedding(3, 2)(ids)))
    assert explain(rest)
    (made,) = values(tf.data.Dataset.from_tensors((x, Y)).map(preprocess))
    assert made[0].tolist() == expected and np.array_equal(made[1], Y)


def test_sample_weights_and_targets_stay_as_they_are():
    preprocess, _ = move_to_pipeline(wide())
    weights = np.arange(32.0)
    ((x, *targets),) = values(tf.data.Dataset.from_tensors(({"city": CITY, "age": AGE}, Y, weights)).map(preprocess))
    assert np.array_equal(targets[0], Y) and np.array_equal(targets[1], weights) and np.array_equal(x["age"], AGE)


def test_batches_at_hand():
    model = wide()
    preprocess, rest = move_to_pipeline(model)
    x = preprocess({"city": CITY, "age": AGE})
    (piped,) = values(tf.data.Dataset.from_tensors({"city": CITY, "age": AGE}).map(preprocess))
    np.testing.assert_allclose(rest.predict(x, verbose=0), rest.predict(piped, verbose=0), rtol=1e-5)


def test_inputs_without_their_last_axis():
    preprocess, _ = move_to_pipeline(wide())
    (made,) = values(tf.data.Dataset.from_tensors({"city": CITY[:, 0], "age": AGE}).map(preprocess))
    assert made["city"].shape == (32, 1)


def test_random_layers_act_where_they_are_told_to():
    preprocess, rest = move_to_pipeline(pictures())
    assert [layer.name for layer in preprocess.layers][1:] == ["turn"]
    data = tf.data.Dataset.from_tensors((IMAGES, np.ones((16, 1))))
    ((as_is, _),) = values(data.map(preprocess.for_inference))
    np.testing.assert_allclose(as_is, 2 * IMAGES, rtol=1e-6)
    ((turned, _),) = values(data.map(preprocess.for_training))
    assert turned.shape == IMAGES.shape and np.abs(turned - as_is).max() > 0.1
    with pytest.raises(ValueError, match=r"act in training only: turn\. Map preprocess\.for_training over the data of"):
        data.map(preprocess)
    assert explain(rest)


@pytest.mark.parametrize("layer", [layers.GaussianNoise(1.0), layers.Dropout(0.5)], ids=lambda layer: layer.name)
def test_noise_acts_in_training_only(layer):
    preprocess, _ = move_to_pipeline(pictures(layer))
    with pytest.raises(ValueError, match=r"act in training only: .*Map preprocess\.for_training"):
        tf.data.Dataset.from_tensors((IMAGES, np.ones((16, 1)))).map(preprocess)


@tensorflow_only
def test_augmentation_is_that_of_the_model_with_the_same_seeds():
    data = tf.data.Dataset.from_tensor_slices((IMAGES, np.ones((16, 1), "float32"))).batch(4)
    model = pictures(layers.RandomZoom(0.3, seed=2))
    model.compile("sgd", "mse", jit_compile=False)
    expected = model.fit(data, epochs=3, verbose=0).history["loss"]
    preprocess, rest = move_to_pipeline(pictures(layers.RandomZoom(0.3, seed=2)))
    compile(rest, "sgd", "mse", jit_compile=True)
    made = rest.fit(data.map(preprocess.for_training), epochs=3, verbose=0).history["loss"]
    np.testing.assert_allclose(made, expected, rtol=1e-4)


def test_a_model_inside_is_taken_apart():
    keras.utils.set_random_seed(0)
    word = keras.Input((1,), dtype="string")
    encoder = keras.Model(word, layers.Dense(2)(layers.Embedding(4, 3)(layers.StringLookup(vocabulary=CITIES)(word))))
    city = keras.Input((1,), dtype="string", name="city")
    model = keras.Model(city, layers.Dense(1)(encoder(city)))
    preprocess, rest = move_to_pipeline(model)
    assert [type(layer).__name__ for layer in preprocess.layers] == ["StringLookup"]
    assert explain(rest) and {id(w) for w in rest.weights} == {id(w) for w in model.weights}
    (ids,) = values(tf.data.Dataset.from_tensors(CITY).map(preprocess))
    table = {name: i for i, name in enumerate(["?", *CITIES])}
    assert ids.tolist() == [[table.get(name, 0)] for name in CITY[:, 0]]
    if not ON_JAX:
        np.testing.assert_allclose(rest.predict(ids, verbose=0), model.predict(tf.constant(CITY), verbose=0), rtol=1e-5)


@tensorflow_only
def test_operations_on_strings_are_found_inside_layers():
    def lengths(x):
        return tf.cast(tf.strings.length(x), "float32")

    text = keras.Input((1,), dtype="string", name="text")
    count = layers.Lambda(lengths, output_shape=(1,), name="count")(keras.ops.reshape(text, (-1, 1)))
    preprocess, rest = move_to_pipeline(keras.Model(text, layers.Dense(1)(count)))
    assert [layer.name for layer in preprocess.layers][-1] == "count" and len(preprocess.layers) == 2
    (made,) = values(tf.data.Dataset.from_tensors(np.array([["abc"], ["d"]])).map(preprocess))
    assert made.tolist() == [[3], [1]] and explain(rest)


@tensorflow_only
def test_a_normalization_in_front_moves_with_what_needs_it():
    class Rounded(layers.Layer):
        def call(self, x):
            return tf.strings.to_number(tf.strings.as_string(x, precision=1))

    age = keras.Input((2,), name="age")
    normal = layers.Normalization(mean=1.0, variance=4.0)
    preprocess, rest = move_to_pipeline(keras.Model(age, layers.Dense(1)(Rounded()(normal(age)))))
    assert len(preprocess.layers) == 2 and explain(rest)
    (made,) = values(tf.data.Dataset.from_tensors(AGE).map(preprocess))
    np.testing.assert_allclose(made, np.round((AGE - 1) / 2, 1), atol=0.051)


def test_a_class_with_its_own_train_step_keeps_it():
    class Custom(keras.Model):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    plain = wide()
    _, rest = move_to_pipeline(Custom(plain.input, plain.output))
    assert type(rest) is Custom


def test_the_rest_is_saved_as_a_plain_keras_model(tmp_path):
    preprocess, rest = move_to_pipeline(wide())
    x = preprocess({"city": CITY, "age": AGE})
    rest.save(tmp_path / "rest.keras")
    loaded = keras.saving.load_model(tmp_path / "rest.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), rest.predict(x, verbose=0), rtol=1e-5)


def test_the_model_still_saves_whole(tmp_path):
    model = wide()
    move_to_pipeline(model)
    model.save(tmp_path / "wide.keras")
    loaded = keras.saving.load_model(tmp_path / "wide.keras")
    assert all(map(np.array_equal, loaded.get_weights(), model.get_weights()))


def test_nothing_to_move():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    preprocess, rest = move_to_pipeline(model)
    assert rest is model and preprocess.layers == ()
    assert preprocess(AGE) is AGE and preprocess(AGE, Y) == (AGE, Y)
    assert "nothing to move" in repr(preprocess)


def test_a_layer_behind_trained_ones():
    class Picky(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.supports_jit = False

        def call(self, x):
            return x

    model = keras.Sequential([keras.Input((2,)), layers.Dense(3, name="first"), Picky(name="picky")], name="late")
    with pytest.raises(
        ValueError, match=r"cannot move 'picky' \(Picky\) of 'late'.* 'first' \(Dense\), which has weights"
    ):
        move_to_pipeline(model)


def test_subclassed_and_unbuilt_models():
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="has no graph of layers: it is subclassed"):
        move_to_pipeline(Own())
    with pytest.raises(ValueError, match="or is not built"):
        move_to_pipeline(keras.Sequential([layers.Dense(1)]))
    with pytest.raises(TypeError, match=r"it expects a keras\.Model"):
        move_to_pipeline(3)


def test_a_model_of_which_nothing_would_be_left():
    city = keras.Input((1,), dtype="string")
    with pytest.raises(ValueError, match="nothing would be left"):
        move_to_pipeline(keras.Model(city, layers.StringLookup(vocabulary=CITIES)(city)))


def test_other_inputs_than_the_models():
    preprocess, _ = move_to_pipeline(wide())
    with pytest.raises(ValueError, match=r"it expects \{'city': 'city', 'age': 'age'\}|it expects \{'age'"):
        preprocess({"town": CITY, "age": AGE})
    with pytest.raises(ValueError, match=r"received 'age' of shape \(32, 2, 1, 1\)"):
        preprocess({"city": CITY, "age": AGE[..., None, None]})


@pytest.mark.skipif(not ON_JAX, reason="on TensorFlow every layer runs in tf.data")
def test_layers_of_ones_own_do_not_run_in_tf_data_on_jax():
    city = keras.Input((1,), dtype="string")
    ids = layers.StringLookup(vocabulary=CITIES)(layers.Reshape((1,))(city))
    with pytest.raises(ValueError, match=r"move 'reshape.*' \(Reshape\).*: it runs on jax only: in tf\.data"):
        move_to_pipeline(keras.Model(city, layers.Embedding(4, 2)(ids)))
