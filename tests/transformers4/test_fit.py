"""`keras_xla.compile`, `XLACompile` and `explain` on models of Keras 2, Hugging Face's TensorFlow classes above all."""

import numpy as np
import pytest
import tf_keras

import keras_xla
from tests.transformers4.models import VOCAB, live

ROWS = 10
IDS = np.random.default_rng(0).integers(3, VOCAB, (ROWS, 6)).astype("int32")
BATCH = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "labels": IDS}


@pytest.fixture(scope="module")
def tuned():
    """A GPT-2 after two epochs of fit on batches of 4, 4 and 2 rows, and its compile log."""
    before = len(keras_xla.compile_log())
    model = live("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    assert keras_xla.compile(model, optimizer=tf_keras.optimizers.SGD(0.1), jit_compile=True) is model
    history = model.fit(BATCH, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return model, history, keras_xla.compile_log()[before:]


def test_fit_runs_their_own_loss_through_xla(tuned):
    model, history, _ = tuned
    assert model.jit_compile
    plain = live("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    plain.compile(optimizer=tf_keras.optimizers.SGD(0.1))
    expected = plain.fit(BATCH, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
    for ours, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_every_compilation_is_in_the_log_the_last_batchs_too(tuned):
    model, _, events = tuned
    assert [(e.name, e.kind) for e in events] == [(f"{model.name}.train_step", "train")] * 2
    assert "x['input_ids']: (4, 6) int" in events[0].shapes and events[0].cause == "first call"
    assert "x['input_ids']: (4, 6) -> (2, 6)" in events[1].cause


def test_evaluate_and_predict_too(tuned, new_events):
    model, *_ = tuned
    loss = model.evaluate(BATCH, batch_size=5, verbose=0)
    expected = float(np.mean(model(**BATCH).loss))
    assert loss == pytest.approx(expected, rel=1e-4)
    logits = model.predict({"input_ids": IDS}, batch_size=5, verbose=0).logits
    np.testing.assert_allclose(logits, model(IDS).logits, atol=1e-4)
    assert [e.kind for e in new_events()] == ["test", "predict"]


def test_a_second_fit_compiles_nothing_and_another_compile_starts_anew(tuned, new_events):
    model, *_ = tuned
    model.fit(BATCH, batch_size=4, verbose=0)
    assert not new_events()
    keras_xla.compile(model, optimizer="sgd", jit_compile=True)
    model.fit(BATCH, batch_size=5, verbose=0)
    assert [e.cause for e in new_events()] == ["model recompiled"]


def classifier(**layers):
    tf_keras.utils.set_random_seed(0)
    inputs = tf_keras.Input((3,))
    middle = layers.get("middle", tf_keras.layers.Dense(4, "relu"))(inputs)
    return tf_keras.Model(inputs, tf_keras.layers.Dense(1, name="out")(middle), name="small")


X, Y = np.random.default_rng(0).normal(size=(10, 3)).astype("float32"), np.ones((10, 1), "float32")


def test_the_callback_does_the_same(new_events):
    model = classifier()
    model.compile("adam", "mse", metrics=["mae"])
    plain = classifier()
    plain.compile("adam", "mse", metrics=["mae"])
    options = dict(batch_size=4, epochs=2, shuffle=False, verbose=0)
    history = model.fit(X, Y, callbacks=[keras_xla.callbacks.XLACompile(True)], **options).history
    assert [e.cause for e in new_events()] == ["first call", "argument x: (4, 3) -> (2, 3), y: (4, 1) -> (2, 1)"]
    expected = plain.fit(X, Y, **options).history
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4)
    model.fit(X, Y, callbacks=[keras_xla.callbacks.XLACompile(jit_compile=False)], **options)
    assert not model.jit_compile and len(new_events()) == 2


def test_several_steps_an_execution_compile_once(new_events):
    model = classifier()
    keras_xla.compile(model, optimizer="sgd", loss="mse", steps_per_execution=2, jit_compile=True)
    model.fit(X[:8], Y[:8], batch_size=2, steps_per_epoch=4, verbose=0)
    assert model._train_counter.numpy() == 4
    assert [e.cause for e in new_events()] == ["first call"]


@pytest.mark.parametrize("jit_compile", [True, "auto"])
@pytest.mark.parametrize("steps", [2, 4, 100])
def test_several_steps_an_execution_are_as_many_as_in_plain_keras(steps, jit_compile):
    """Where they do not divide an epoch, too: Keras then asks for fewer in the last call."""
    results = []
    for ours in (False, True):
        model = classifier()
        options = dict(optimizer="sgd", loss="mse", steps_per_execution=steps)
        if ours:
            keras_xla.compile(model, jit_compile=jit_compile, **options)
        else:
            model.compile(jit_compile=jit_compile is True, **options)
        fit = dict(batch_size=2, epochs=2, shuffle=False, verbose=0, validation_data=(X[:6], Y[:6]))
        history = model.fit(X, Y, **fit).history
        count = int(model._train_counter)
        made = [model.predict(X, batch_size=2, verbose=0), model.evaluate(X, Y, batch_size=2, verbose=0)]
        results.append([*history.values(), count, *made, *model.get_weights()])
    for plain, made in zip(*results, strict=True):
        np.testing.assert_allclose(made, plain, rtol=1e-4, atol=1e-6)
    assert results[1][2] == 2 * len(X) // 2 and len(results[1][3]) == len(X)


def test_a_custom_step_with_an_if_on_a_tensor_is_converted(new_events):
    import tensorflow as tf

    class Model(tf_keras.Model):
        def train_step(self, data):
            x, y = data
            if tf.reduce_sum(x) > 1e9:
                x = x * 0.0
            return super().train_step((x, y))

    inputs = tf_keras.Input((3,))
    model = Model(inputs, tf_keras.layers.Dense(1)(inputs))
    keras_xla.compile(model, optimizer="sgd", loss="mse", jit_compile=True)
    model.fit(X, Y, batch_size=10, verbose=0)
    assert len(new_events("train")) == 1


def test_an_operation_that_xla_does_not_have_is_named_before_anything_runs():
    import tensorflow as tf

    spell = tf_keras.layers.Lambda(lambda x: tf.strings.to_number(tf.strings.as_string(x)), name="spell")
    model = keras_xla.compile(classifier(middle=spell), optimizer="sgd", loss="mse", jit_compile=True)
    before = model.get_weights()
    with pytest.raises(keras_xla.XLAUnsupportedError, match=r"spell \(Lambda\): the operation AsString"):
        model.fit(X, Y, verbose=0)
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    explanation = keras_xla.explain(model)
    assert not explanation and "spell (Lambda)" in str(explanation)


def test_auto_gives_what_keras_2_gives(new_events, monkeypatch):
    from keras_xla.training.decide import policy

    monkeypatch.setattr(policy, "estimated_cost", lambda facts, graph: 0.0)
    monkeypatch.setattr(policy, "MARGIN", float("inf"))  # XLA, however slow it is here
    ours, plain = keras_xla.compile(classifier(), optimizer="adam", loss="mse"), classifier()
    plain.compile("adam", "mse")
    options = dict(batch_size=4, epochs=3, shuffle=False, verbose=0, validation_data=(X, Y))
    history, expected = (model.fit(X, Y, **options).history for model in (ours, plain))
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4)
    np.testing.assert_allclose(ours.predict(X, verbose=0), plain.predict(X, verbose=0), rtol=1e-4)
    assert [e.kind for e in new_events()] == ["train", "test", "predict"]
    assert [d.way for d in keras_xla.model_report(ours).history.decisions] == ["xla", "graph", "xla", "graph", "xla"]


def test_explain_knows_the_inputs_that_their_classes_declare():
    explanation = keras_xla.explain(live("gpt2"))
    assert explanation and explanation.traced
    assert keras_xla.explain(classifier()).traced


def test_the_model_stays_plain_and_saves(tuned, tmp_path):
    model, *_ = tuned
    assert type(model).__module__.startswith("transformers.")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    np.testing.assert_array_equal(again.transformer.wte.embeddings, model.transformer.wte.embeddings)
    small = keras_xla.compile(classifier(), optimizer="sgd", loss="mse")
    small.fit(X, Y, verbose=0)
    small.save(tmp_path / "small.keras")
    loaded = tf_keras.models.load_model(tmp_path / "small.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), small.predict(X, verbose=0), atol=1e-6)


def test_wrong_models():
    with pytest.raises(TypeError, match=r"received int; it expects a keras.Model \(or a tf_keras.Model\)"):
        keras_xla.compile(3)
    with pytest.raises(ValueError, match="jit_compile='yes'"):
        keras_xla.compile(classifier(), jit_compile="yes")


def test_a_recurrent_model_of_keras_2_with_two_outputs(new_events):
    x = np.random.default_rng(0).normal(size=(10, 5, 3)).astype("float32")
    y = {"a": np.linspace(0, 9, 10)[:, None], "b": np.ones((10, 1))}
    shown = []
    for made in (tf_keras.Model.compile, keras_xla.compile):
        tf_keras.utils.set_random_seed(0)
        inputs = tf_keras.Input((5, 3))
        hidden = tf_keras.layers.GRU(4)(inputs)
        model = tf_keras.Model(inputs, {name: tf_keras.layers.Dense(1, name=name)(hidden) for name in y})
        options = dict(loss=dict.fromkeys(y, "mse")) | (dict(jit_compile=True) if made is keras_xla.compile else {})
        made(model, tf_keras.optimizers.SGD(0.1), **options)
        shown.append(model.fit(x, y, batch_size=4, epochs=2, shuffle=False, validation_data=(x, y), verbose=0).history)
    expected, ours = shown
    assert new_events("train") and set(ours) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-4, err_msg=name)
