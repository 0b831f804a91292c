"""Samples at the end of epochs: of the weights of then, in one compilation, and training goes on as without them."""

import json

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla import XLAGenerationLayer
from keras_xla.callbacks import GenerateSamples
from tests.tokenizers import tiny

VOCAB, LENGTH = 97, 12


def model_of(jit_compile=False):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Dropout(0.3)(keras.layers.Embedding(VOCAB, 16)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(VOCAB)(keras.layers.Dense(16, "tanh")(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if jit_compile:
        keras_xla.compile(model, optimizer="adam", loss=loss)
    else:
        model.compile(optimizer="adam", loss=loss, jit_compile=False)
    return model


def data():
    ids = np.random.default_rng(0).integers(5, VOCAB, (96, LENGTH + 1)).astype("int32")
    return ids[:, :-1], ids[:, 1:]


def fit(*callbacks, jit_compile=False, epochs=3):
    model = model_of(jit_compile)
    model.fit(*data(), batch_size=16, epochs=epochs, callbacks=list(callbacks), verbose=0)
    return model


@pytest.mark.quick_on_jax
@pytest.mark.quick("sampled-keras_xla")
@pytest.mark.parametrize("jit_compile", [False, True], ids=["plain", "keras_xla"])
@pytest.mark.parametrize("options", [{}, dict(do_sample=True)], ids=["greedy", "sampled"])
def test_training_goes_on_as_without_them(options, jit_compile):
    samples = GenerateSamples([[5, 6, 7]], verbose=0, max_new_tokens=4, **options)
    made, state = fit(samples, jit_compile=jit_compile), np.random.get_state()[1].tolist()
    plain = fit(jit_compile=jit_compile)
    for ours, theirs in zip(made.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.slow
def test_samples_are_of_the_weights_of_then_and_compile_once(tmp_path):
    kept, counts = [], []

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kept.append(self.model.get_weights())
            counts.append(samples.layer.trace_count)

    file, prompts = tmp_path / "samples.jsonl", [[5, 6, 7], [8]]
    samples = GenerateSamples(prompts, file=file, max_new_tokens=6)
    model = fit(samples, Keep())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert counts == [counts[0]] * 3 and counts[0] <= 2  # the prompts, and the tokens
    fresh = XLAGenerationLayer(model)
    for line, weights in zip(lines, kept, strict=True):
        model.set_weights(weights)
        out = fresh.generate(prompts, max_new_tokens=6)["sequences"].tolist()
        assert line["samples"] == out


@pytest.mark.slow
def test_fits_of_one_model_compile_once_until_it_is_another(tmp_path):
    file = tmp_path / "samples.jsonl"
    samples, model, counts = GenerateSamples([[5, 6, 7]], file=file, verbose=0, max_new_tokens=4), model_of(), []
    layers = []
    for change in (None, None, "activation"):
        if change:  # a setting that the model tells
            model.layers[-1].activation = keras.activations.relu
        model.compile(optimizer="sgd", loss=model.loss)
        model.fit(*data(), batch_size=32, callbacks=[samples], verbose=0)
        layers.append(samples.layer)
        counts.append(samples.layer.trace_count)
    assert layers[0] is layers[1] is not layers[2] and counts[0] == counts[1]
    made = XLAGenerationLayer(model).generate([[5, 6, 7]], max_new_tokens=4)["sequences"].tolist()
    assert json.loads(file.read_text().splitlines()[-1])["samples"] == made


class Scaled(keras.layers.Layer):
    """A layer that tells nothing of what it computes."""

    scale = 1.0

    def call(self, x):
        return x * self.scale


@pytest.mark.slow
def test_of_code_of_ones_own_no_layer_is_kept(tmp_path):
    file, scaled = tmp_path / "samples.jsonl", Scaled()
    model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(VOCAB, VOCAB), scaled])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    samples = GenerateSamples([[5, 6, 7]], file=file, verbose=0, max_new_tokens=4)
    for scaled.scale in (1.0, -1.0):
        model.fit(*data(), batch_size=32, callbacks=[samples], verbose=0)
        made = XLAGenerationLayer(model).generate([[5, 6, 7]], max_new_tokens=4)["sequences"].tolist()
        assert json.loads(file.read_text().splitlines()[-1])["samples"] == made


def relu(x):
    """Has the name of one of Keras', and is another function."""
    return -x


@pytest.mark.slow
def test_an_activation_of_ones_own_is_not_taken_for_keras(tmp_path):
    file, model = tmp_path / "samples.jsonl", model_of()
    samples = GenerateSamples([[5, 6, 7]], file=file, verbose=0, max_new_tokens=4)
    for model.layers[-1].activation in (keras.activations.relu, relu, keras_xla.jit(keras.ops.negative)):
        model.compile(optimizer="sgd", loss=model.loss)
        model.fit(*data(), batch_size=32, callbacks=[samples], verbose=0)
        made = XLAGenerationLayer(model).generate([[5, 6, 7]], max_new_tokens=4)["sequences"].tolist()
        assert json.loads(file.read_text().splitlines()[-1])["samples"] == made


@pytest.mark.slow
def test_a_streamer_is_told_the_samples():
    class Streamer:
        told, ends = 0, 0

        def put(self, ids):
            self.told += 1

        def end(self):
            self.ends += 1

    streamer = Streamer()
    fit(GenerateSamples([[5, 6, 7]], verbose=0, max_new_tokens=4, streamer=streamer), epochs=2)
    assert streamer.ends == 2 and streamer.told == 2 * 5  # the prompt, and four tokens


@pytest.mark.slow
def test_a_training_that_diverges_goes_on(tmp_path):
    class Diverge(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.layers[1].set_weights([np.full((VOCAB, 16), np.nan, "float32")])

    file = tmp_path / "samples.jsonl"
    with pytest.warns(UserWarning, match="1 of 1 prompts have no answer. Prompt 0: the model's logits are NaN"):
        fit(Diverge(), GenerateSamples([[5, 6, 7]], file=file, verbose=0, max_new_tokens=4))
    samples = [json.loads(line)["samples"] for line in file.read_text().splitlines()]
    assert [len(each[0]) for each in samples] == [4, 0, 0]


@pytest.mark.slow
def test_texts_are_printed_and_shown_in_tensorboard(tmp_path, capsys):
    fit(GenerateSamples("a b", tokenizer=tiny(), log_dir=tmp_path, max_new_tokens=3, every=2), epochs=2)
    out = capsys.readouterr().out
    assert out.count("Sample after epoch") == 1 and "Sample after epoch 2: a b" in out
    assert list(tmp_path.rglob("events.out.tfevents*"))


@pytest.mark.slow
def test_a_sample_that_begins_with_its_prompt_is_printed_as_it_is(capsys):
    fit(GenerateSamples(["ab"], tokenizer=tiny(), max_new_tokens=3, return_prompt=True), epochs=1)
    assert capsys.readouterr().out.count("ab") == 1


@pytest.mark.slow
def test_the_seed_is_the_epoch(tmp_path):
    file = tmp_path / "samples.jsonl"
    options = dict(max_new_tokens=8, do_sample=True, num_return_sequences=2)
    samples = GenerateSamples([[5]], file=file, verbose=0, **options)
    model = fit(samples, epochs=1)
    made = json.loads(file.read_text())["samples"]
    assert made == samples.layer.generate([[5]], seed=0, **options)["sequences"].tolist() and len(made) == 2
    assert made[0] != made[1] and model.built


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (dict(prompts=[[500]]), ValueError, "token id 500"),
        (dict(prompts=["a"]), ValueError, "no tokenizer"),
        (dict(prompts=[[5]], temperatur=2.0), TypeError, "temperatur"),
    ],
)
def test_errors_come_before_the_first_epoch(arguments, error, text):
    begun = []
    seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
    with pytest.raises(error, match=text):
        fit(GenerateSamples(**arguments), seen)
    assert not begun


def test_a_file_that_cannot_be_written_is_told_before_the_first_epoch(tmp_path):
    samples = GenerateSamples([[5]], file=tmp_path / "there is none" / "samples.jsonl")
    with pytest.raises(FileNotFoundError):
        samples.on_train_begin()


def test_bad_every():
    with pytest.raises(ValueError, match="every=0"):
        GenerateSamples(["a"], every=0)


def test_a_layer_has_its_own_tokenizer():
    layer = XLAGenerationLayer(model_of(), tiny())
    with pytest.raises(ValueError, match="Received layer and tokenizer"):
        GenerateSamples(["a"], layer, tokenizer=tiny())


@pytest.mark.slow
def test_a_second_model_is_sampled_itself(tmp_path):
    file = tmp_path / "samples.jsonl"
    samples = GenerateSamples([[5, 6]], file=file, verbose=0, max_new_tokens=6)
    models = [fit(samples, epochs=1), fit(samples, epochs=2)]
    lines = [json.loads(line)["samples"] for line in file.read_text().splitlines()]
    for model, line in zip(models, (lines[0], lines[2]), strict=True):
        assert XLAGenerationLayer(model).generate([[5, 6]], max_new_tokens=6)["sequences"].tolist() == line


@pytest.mark.slow
def test_a_layer_with_a_seed_may_be_greedy_here():
    model = model_of()
    layer = XLAGenerationLayer(model, do_sample=True, seed=5, max_new_tokens=3)
    model.fit(*data(), batch_size=32, verbose=0, callbacks=[GenerateSamples([[5]], layer, do_sample=False, verbose=0)])


@pytest.mark.parametrize("prompts", [{"input_ids": [[5]]}, [{"role": "user", "content": "a"}]])
def test_bad_prompts(prompts):
    with pytest.raises(TypeError, match="expected a list of texts"):
        GenerateSamples(prompts)
