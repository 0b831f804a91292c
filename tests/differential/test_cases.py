"""Defects that were found, each as the smallest script that showed it."""

import copy
import functools
import inspect
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_xla
from tests.differential.actions import (
    OTHER,
    VALID,
    ChangeArrays,
    Compile,
    Evaluate,
    Fit,
    Predict,
    TestOnBatch,
    TrainOnBatch,
)
from tests.differential.callbacks import At, Look
from tests.differential.data import Data
from tests.differential.run import compared
from tests.differential.scenario import Scenario

if keras.backend.backend() != "tensorflow":
    pytest.skip("scenarios are led through the ways of the TensorFlow backend", allow_module_level=True)

WAYS = pytest.mark.parametrize("way", ["plain", "xla", "true"])


def equal(*actions, **more):
    found = compared(Scenario(actions=actions, **more))
    assert not found, "\n".join(found)


class TestAnotherBatchWhileFitRunsOnArrays:
    @pytest.mark.parametrize("hook", ["train_begin", "epoch_begin", "epoch_end", "test_begin", "test_end", "train_end"])
    @WAYS
    @pytest.mark.quick("xla-epoch_end", "plain-epoch_begin", "true-epoch_end")
    def test_train_on_batch_trains_on_its_own(self, hook, way):
        equal(Compile(), Fit(epochs=2, validation=VALID, callbacks=(At(hook=hook, action=TrainOnBatch()),)), way=way)

    @pytest.mark.parametrize(
        "action", [Fit(data=OTHER), Evaluate(data=OTHER), Predict(data=OTHER), TestOnBatch()], ids=repr
    )
    @pytest.mark.parametrize("hook", ["epoch_begin", "epoch_end"])
    @pytest.mark.quick("epoch_end-Evaluate", "epoch_end-Fit")
    def test_so_do_nested_calls(self, hook, action):
        equal(Compile(), Fit(epochs=2, validation=VALID, callbacks=(At(hook=hook, action=action),)))


class TestArraysThatChangeInPlace:
    @pytest.mark.parametrize("entry", ["compile", "callback"])
    def test_evaluate_sees_them_as_they_are(self, entry):
        equal(Compile(), Fit(), Evaluate(), ChangeArrays(data=VALID), Evaluate(), entry=entry)

    def test_so_does_the_validation_of_another_fit(self):
        equal(Compile(), Fit(validation=VALID), ChangeArrays(data=VALID), Fit(validation=VALID), entry="callback")

    @pytest.mark.parametrize("hook", ["epoch_begin", "epoch_end", "test_begin"])
    @pytest.mark.parametrize("changed", [Data(), VALID], ids=["rows", "validation"])
    @pytest.mark.quick("epoch_begin")
    def test_while_fit_runs(self, hook, changed):
        """Keras has copied the rows by then, or not: what it does is what counts."""
        equal(Compile(), Fit(epochs=2, validation=VALID, callbacks=(At(hook=hook, action=ChangeArrays(data=changed)),)))


class TestCompiledAgain:
    @pytest.mark.parametrize("freeze", [False, True], ids=["as it was", "frozen"])
    @WAYS
    @pytest.mark.quick("plain", "xla-frozen")
    def test_plainly(self, freeze, way):
        equal(Compile(), Fit(epochs=2), Compile(plainly=True, freeze=freeze), Fit(epochs=2), Evaluate(), way=way)

    def test_in_a_callback(self):
        again = At(hook="epoch_end", action=Compile(plainly=True, freeze=True), turn=0)
        equal(Compile(), Fit(epochs=2, callbacks=(again,)), Fit())

    @pytest.mark.parametrize("switch", ["auto", True])
    def test_keras_xla_still_runs_the_model(self, switch):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        keras_xla.compile(model, optimizer="sgd", loss="mse", jit_compile=switch)
        x = keras.random.normal((8, 4))
        model.fit(x, x[:, :1], verbose=0)
        model.layers[0].trainable = False
        model.compile(optimizer="sgd", loss="mse")
        model.fit(x, x[:, :1], verbose=0)
        assert keras_xla.model_report(model).to_dict()["jit_compile"] == switch

    @pytest.mark.parametrize("switch", [True, False])
    def test_what_the_user_asks_for_wins(self, switch):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        keras_xla.compile(model, optimizer="sgd", loss="mse")
        model.compile(optimizer="sgd", loss="mse", jit_compile=switch)
        assert model.jit_compile is switch


class TestCompiledAgainInACall:
    """In a callback, while a call goes on: Keras asks the model for its function at every step."""

    @pytest.mark.parametrize("action", [Evaluate, Predict])
    @WAYS
    @pytest.mark.quick("xla")
    def test_at_the_beginning_of_a_call_that_then_has_no_function(self, action, way):
        hook = "test_begin" if action is Evaluate else "predict_begin"
        again = At(hook=hook, action=Compile(optimizer="adam", freeze=True), turn=0)
        equal(Compile(), Fit(), action(callbacks=(again,)), action(), way=way)

    @WAYS
    @pytest.mark.slow
    def test_evaluated_before_fit_which_makes_the_optimizers_variables(self, way):
        again = Compile(optimizer="adam", freeze=True)
        equal(Compile(), Fit(), again, Evaluate(), Fit(), Compile(optimizer="adam"), Evaluate(), Fit(), way=way)

    @WAYS
    @pytest.mark.quick("plain")
    def test_at_the_beginning_of_a_call_whose_function_another_call_makes_anew(self, way):
        again = [At(hook="test_begin", action=action, turn=0) for action in (Compile(optimizer="adam"), Evaluate())]
        equal(Compile(), Fit(), Evaluate(), Evaluate(callbacks=tuple(again)), Evaluate(), way=way)

    @pytest.mark.parametrize(
        "how",
        [
            {"jit_compile": False},
            {"run_eagerly": True},
            {"steps_per_execution": 2},
            {"jit_compile": False, "steps_per_execution": 2},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("form", ["arrays", "dataset"])
    @pytest.mark.quick("arrays")
    def test_by_functions_of_keras_own(self, how, form):
        """The first callback compiles in another way, and calls the model; the call that goes on has to go on so."""

        class Doubled(keras.Sequential):
            doubled = False

            def predict_step(self, data):
                return super().predict_step(data) * (2.0 if self.doubled else 1.0)

        class Again(keras.callbacks.Callback):
            def on_test_begin(self, logs=None):
                if type(self.model.loss) is str and self.model.loss == "mse":
                    self.model.compile("sgd", "mae", metrics=["mse"], **how)
                    self.model.evaluate(x[:8], x[:8, :1], verbose=0)

            def on_predict_begin(self, logs=None):
                if not self.model.doubled:
                    self.model.doubled = True
                    self.model.compile("sgd", "mse", **how)
                    self.model.predict(x[:8], verbose=0)

        x = np.random.default_rng(0).normal(size=(22, 4)).astype("float32")
        data = {"x": x, "batch_size": 8} if form == "arrays" else {"x": tf.data.Dataset.from_tensor_slices(x).batch(8)}
        labelled = {**data, "y": x[:, :1]}
        if form == "dataset":
            labelled = {"x": tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)}
        found = []
        for compiles in (keras.Model.compile, keras_xla.compile):
            keras.utils.set_random_seed(0)
            model = Doubled([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
            compiles(model, optimizer="sgd", loss="mse")
            more = {**labelled, "verbose": 0, "callbacks": [Again()]}
            made = [
                model.evaluate(**labelled, verbose=0),
                model.evaluate(**more),
                model.evaluate(**labelled, verbose=0),
            ]
            compiles(model, optimizer="sgd", loss="mse")
            made += [model.predict(**data, verbose=0), model.predict(**data, verbose=0, callbacks=[Again()])]
            found.append([*made, model.predict(**data, verbose=0)])
        for plain, ours in zip(*found, strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-5)


class TestBadData:
    """What plain Keras refuses is refused, with its type; in the plain graph with its reason, too."""

    @pytest.mark.parametrize(("kind", "spoiled"), [("mlp", "label"), ("embedding", "id"), ("checked", "value")])
    @WAYS
    @pytest.mark.quick("xla", "true-mlp")
    def test_in_fit(self, kind, spoiled, way):
        equal(Compile(), Fit(data=Data(spoiled=spoiled)), kind=kind, way=way)

    @pytest.mark.parametrize(("kind", "spoiled"), [("mlp", "label"), ("embedding", "id"), ("checked", "value")])
    @WAYS
    @pytest.mark.quick("xla-embedding", "xla-mlp")
    def test_in_evaluate(self, kind, spoiled, way):
        equal(Compile(), Fit(), Evaluate(data=Data(spoiled=spoiled)), kind=kind, way=way)

    @pytest.mark.parametrize(("kind", "spoiled"), [("embedding", "id"), ("checked", "value")])
    @WAYS
    @pytest.mark.slow
    def test_in_predict(self, kind, spoiled, way):
        equal(Compile(), Fit(), Predict(data=Data(spoiled=spoiled)), kind=kind, way=way)

    @pytest.mark.parametrize("form", ["generator", "sequence"])
    @WAYS
    def test_python_that_raises(self, form, way):
        equal(Compile(), Fit(data=Data(form=form, spoiled="raise"), callbacks=(Look(batches=True),)), way=way)

    @pytest.mark.parametrize("form", ["generator", "sequence"])
    @WAYS
    @pytest.mark.quick("xla-generator", "plain-generator", "plain-sequence")
    def test_python_that_raises_while_steps_run_ahead(self, form, way):
        data = Data(rows=64, batch=4, form=form, spoiled="raise")
        equal(Compile(optimizer="adam"), Fit(data=data, shuffle=False), way=way)

    @pytest.mark.parametrize("way", ["plain", "true"])
    def test_rows_of_another_width_at_first(self, way):
        equal(Compile(), Fit(data=Data(spoiled="width")), way=way)

    @pytest.mark.parametrize("form", ["arrays", "dataset", "generator"])
    @pytest.mark.parametrize("way", ["plain", "true"])
    @pytest.mark.slow
    def test_rows_of_another_width(self, form, way):
        wrong = Data(form=form, spoiled="width")
        equal(Compile(), Fit(), Fit(data=wrong), way=way)
        equal(Compile(), Evaluate(), Evaluate(data=wrong), way=way)
        equal(Compile(), Predict(), Predict(data=wrong), way=way)


class TestWhatAModelShows:
    @pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "compile"])
    def test_signatures_and_docs_are_those_of_keras(self, method):
        plain, ours = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) for _ in range(2))
        keras_xla.compile(ours, optimizer="sgd", loss="mse")
        plain, ours = getattr(plain, method), getattr(ours, method)
        assert inspect.signature(ours) == inspect.signature(plain)
        assert inspect.getdoc(ours) == inspect.getdoc(plain)

    @pytest.mark.parametrize(
        "copied",
        [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), keras.models.clone_model],
        ids=["copy", "deepcopy", "pickle", "clone"],
    )
    def test_copies_predict_what_the_model_does(self, copied):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
        keras_xla.compile(model, optimizer="sgd", loss="mse")
        x = np.ones((8, 4), "float32")
        expected = model.predict(x, verbose=0)
        np.testing.assert_array_equal(copied(model).predict(x, verbose=0), expected)

    def test_a_copy_trains_itself(self):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        keras_xla.compile(model, optimizer="sgd", loss="mse")
        x = np.ones((8, 4), "float32")
        model.fit(x, x[:, :1], verbose=0)
        copied, before = copy.deepcopy(model), model.get_weights()
        copied.fit(x, x[:, :1], verbose=0)
        assert all(map(np.array_equal, model.get_weights(), before))
        assert not np.array_equal(copied.get_weights()[0], before[0])


@pytest.mark.parametrize("way", ["plain", "xla"])
@pytest.mark.parametrize("last", [Evaluate(data=Data(rows=9, batch=9)), TestOnBatch()], ids=["evaluate", "one batch"])
@pytest.mark.slow
def test_losses_of_several_outputs_are_counted_as_keras_counts_them(way, last):
    """By rows in a graph that knows how many there are, else by batches; the counts stay in the metrics."""
    equal(Compile(), Fit(data=Data(rows=10, batch=4), validation=VALID), last, kind="two_outputs", way=way)


@pytest.mark.parametrize("way", ["plain", "xla", "true"])
@pytest.mark.slow
def test_so_they_are_where_only_the_last_batch_is_smaller_than_those_before(way):
    """The first call's batches have the size of most of the second's, whose graph does not know that."""
    equal(
        Compile(),
        Evaluate(data=Data(rows=8, batch=4)),
        Evaluate(data=Data(rows=10, batch=4)),
        kind="two_outputs",
        way=way,
    )
    equal(Compile(), Fit(data=Data(rows=8, batch=4)), Fit(data=Data(rows=10, batch=4)), kind="two_outputs", way=way)


@pytest.mark.slow
def test_no_warning_of_retracing():
    """Six sizes of a batch are six traces of ours; nobody but we could mend that."""
    data = [Data(rows=2 * size, batch=size) for size in range(2, 8)]
    equal(Compile(), *(Evaluate(data=each) for each in data), *(Fit(data=each) for each in data))


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_data_without_a_batch_build_what_a_fit_would(jit_compile):
    """Plain Keras traces its step before it asks for a batch. Metrics that were never built raise.

    States are not compared: what does not depend on the batch, such as the count of a metric, runs in plain Keras.
    """
    rows = np.ones((3, 2), "float32")
    empty = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(4, drop_remainder=True)
    histories = []
    for compiled in (keras.Model.compile, functools.partial(keras_xla.compile, jit_compile=jit_compile)):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, kernel_initializer="ones")])
        compiled(model, optimizer=keras.optimizers.Adam(use_ema=True), loss="mse", metrics=["mae"])
        with pytest.warns(UserWarning, match="ran out of data"):
            made = model.fit(empty, steps_per_epoch=1, validation_data=(rows, rows), verbose=0)
        histories.append(made.history)
    assert histories[0] == histories[1]


@pytest.mark.parametrize("form", ["arrays", "dropped"])
@pytest.mark.quick("dropped")
def test_batches_of_two_known_sizes_are_added_up_as_in_one_graph_for_all_sizes(form):
    """Plain Keras runs the second fit in a graph that does not know the size; ours did know, and rounded otherwise."""
    first, second = Data(form=form), Data(rows=16, batch=4, seed=1, form=form)
    equal(Compile(), Fit(data=first), Fit(data=second), kind="regularized", seed=31)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_inputs_that_are_none_raise_what_keras_raises(method):
    errors = []
    for compiled in (keras.Model.compile, keras_xla.compile):
        inputs = [keras.Input((2,), name="first"), keras.Input((2,), name="second")]
        model = keras.Model(inputs, keras.layers.Add()(inputs), name="sum")
        compiled(model, optimizer="sgd", loss="mse")
        data = ([None, None],) if method == "predict" else ([None, None], np.ones((2, 2)))
        with pytest.raises(Exception) as raised:
            getattr(model, method)(*data, verbose=0)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.parametrize("loss", ["crossentropy", "ce"])
@pytest.mark.quick("crossentropy-True")
def test_a_loss_that_keras_chooses_by_the_outputs_shape(loss, jit_compile):
    rows, histories = np.linspace(0, 1, 10, dtype="float32")[:, None], []
    for compiled in (keras.Model.compile, functools.partial(keras_xla.compile, jit_compile=jit_compile)):
        dense = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), dense])
        compiled(model, optimizer="sgd", loss=loss, metrics=["accuracy"])
        histories.append(
            model.fit(rows, (rows > 0.5).astype("float32"), batch_size=4, shuffle=False, verbose=0).history
        )
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5)


class TestStepsWithTheNumberOfTheirRows:
    @WAYS
    def test_the_last_batch_of_arrays_is_checked_as_it_is(self, way):
        """What is reshaped to a full batch's size told TensorFlow's optimizer that every batch is full."""
        equal(Compile(), Fit(data=Data(rows=20, batch=8)), kind="towers", way=way)


class TestListsThatNobodyUses:
    @WAYS
    def test_of_an_encoder_only_the_states_count(self, way):
        equal(Compile(), Fit(), kind="coder", way=way)

    @WAYS
    def test_they_do_not_cross_into_a_compiled_part(self, way):
        equal(Compile(), Fit(), kind="unit_length", way=way)


class TestMaxima:
    @pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
    @WAYS
    def test_their_gradients_find_them_where_xla_rounds_in_two_ways(self, way, dtype):
        equal(Compile(), Fit(), Evaluate(), Predict(), kind="peaks", way=way, dtype=dtype)
