"""LoRA: frozen kernels with small trained factors beside them, and the results of plain Keras."""

import functools

import keras
import numpy as np
import pytest

from keras_xla.training.attach import attachment_of
from keras_xla.training.compile import compile
from keras_xla.training.decide import policy
from tests.training.helpers import LOSS, Log, Y

WORDS, LENGTH, RANK = 30, 6, 2
IDS = np.random.default_rng(0).integers(0, WORDS, (len(Y), LENGTH)).astype("int32")
FROZEN = ("kernel", "embeddings")
# On JAX Keras compiles every step itself; on TensorFlow trials take place, and what they measure does not matter.
WAYS = ["graph", "xla", "forced"] if keras.backend.backend() == "tensorflow" else ["auto", "forced"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    monkeypatch.setattr(policy, "MARGIN", float("inf") if request.param == "xla" else 0.0)
    return request.param


def reader() -> keras.Model:
    """Dense, Embedding, EinsumDense, and those that attention is made of."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    ids = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 8, keras.initializers.RandomNormal(stddev=1.0), name="words")(ids)
    # A bias of the keys has a gradient of rounding alone, which Adam would blow up.
    x = layers.Add()([x, layers.MultiHeadAttention(2, 4, use_bias=False, name="attention")(x, x)])
    x = layers.EinsumDense("abc,cd->abd", (None, 8), bias_axes="d", activation="gelu", name="mixing")(x)
    return keras.Model(ids, layers.Dense(3, name="head")(layers.GlobalAveragePooling1D()(x)), name="reader")


def with_lora(model: keras.Model) -> keras.Model:
    parts = [layer for layer in model._flatten_layers() if hasattr(layer, "enable_lora") and layer.built]
    assert {type(part).__name__ for part in parts} == {"Dense", "Embedding", "EinsumDense"}
    assert len(parts) == 7  # four of them inside the attention
    for part in parts:
        part.enable_lora(RANK)
    return model


def plain(_way, model):
    model.compile("adam", LOSS)
    return model


def ours(way, model):
    return compile(model, "adam", LOSS, jit_compile=True if way == "forced" else "auto")


def train(model, epochs=2):
    return model.fit(IDS, Y, batch_size=16, epochs=epochs, verbose=0).history["loss"]


@functools.cache
def trained_plainly():
    """Losses, weights and answers of plain Keras."""
    model = plain(None, with_lora(reader()))
    return train(model), model.get_weights(), model.predict(IDS, verbose=0)


def named(model, *beginnings) -> dict[str, np.ndarray]:
    """Values of the weights whose names begin so, by path."""
    return {v.path: np.array(v.value) for v in model.weights if v.name.startswith(beginnings)}


def assert_same(way, made, expected):
    """Bit for bit where the plain graph runs, to rounding where XLA does."""
    exact = way == "graph"
    for a, b in zip(keras.tree.flatten(made), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0 if exact else 2e-4, atol=0 if exact else 1e-5)


def assert_trained_as_lora_does(model, before):
    """The kernels are bit-equal, and every factor has moved."""
    frozen, factors = named(model, *FROZEN), named(model, "lora_")
    assert len(frozen) == 7 and len(factors) == 14
    for path, value in frozen.items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)
    for path, value in factors.items():
        assert np.abs(value - before[path]).max() > 1e-4, path


@pytest.mark.quick("xla", "auto")
def test_losses_are_those_of_plain_keras_and_the_kernels_stay(way):
    model = ours(way, with_lora(reader()))
    before = named(model, *FROZEN, "lora_")
    losses = train(model)
    assert losses[-1] < losses[0]
    assert_same(way, (losses, model.get_weights(), model.predict(IDS, verbose=0)), trained_plainly())
    assert_trained_as_lora_does(model, before)
    if way in ("graph", "xla"):
        assert attachment_of(model).journal.decisions[0].way == way


def trained_without_and_with(way, make):
    model = make(way, reader())
    losses = [*train(model)]
    make(way, with_lora(model))
    before = named(model, *FROZEN, "lora_")
    losses += train(model)
    assert_trained_as_lora_does(model, before)
    return losses, model.get_weights()


@functools.cache
def trained_without_and_with_plainly():
    return trained_without_and_with(None, plain)


@pytest.mark.slow
def test_lora_after_a_first_fit(way):
    log = Log()
    made = trained_without_and_with(way, ours)
    first, *later = log.causes()
    assert first == "first call" and "model recompiled" in later
    assert_same(way, made, trained_without_and_with_plainly())


@pytest.mark.slow
def test_it_is_compiled_once_for_each_compile(way):
    log, model = Log(), ours(way, reader())
    for again in (lambda: None, lambda: ours(way, with_lora(model))):
        again()
        model.fit(IDS, Y, batch_size=len(Y), epochs=2, verbose=0)
        model.fit(IDS, Y, batch_size=len(Y), epochs=2, verbose=0)
    assert log.causes() == ["first call", "model recompiled"]


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # attention does not save its parts' rank
@pytest.mark.slow
def test_saving_merges_the_factors_and_training_goes_on(way, tmp_path):
    model = ours(way, with_lora(reader()))
    train(model)
    answers = model.predict(IDS, verbose=0)
    model.save(tmp_path / "model.keras")

    def loaded(make):
        keras.utils.set_random_seed(0)  # which shuffles alike
        return make(way, keras.saving.load_model(tmp_path / "model.keras"))

    made = loaded(ours)
    np.testing.assert_allclose(made.predict(IDS, verbose=0), answers, rtol=1e-4, atol=1e-5)
    before = named(made, *FROZEN)
    kept = {path: value for path, value in before.items() if "attention" not in path}  # which has lost its LoRA
    assert_same(way, train(made), train(loaded(plain)))
    after = named(made, *FROZEN)
    assert len(kept) == 3 and all(np.array_equal(after[path], value) for path, value in kept.items())


@pytest.mark.slow
def test_weights_go_to_a_model_without_lora(way, tmp_path):
    model = ours(way, with_lora(reader()))
    train(model)
    model.save_weights(tmp_path / "model.weights.h5")
    other = reader()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(
        other.predict(IDS, verbose=0), model.predict(IDS, verbose=0), rtol=1e-4, atol=1e-5, err_msg="merged kernels"
    )
