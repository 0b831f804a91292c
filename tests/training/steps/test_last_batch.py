"""Where XLA runs every batch the last is filled up: one executable, the losses, metrics and weights of plain Keras."""

import functools

import keras
import numpy as np
import pytest
import scipy.sparse

from keras_xla.training.compile import compile
from keras_xla.training.reports.compile_report import CompileReport
from keras_xla.training.reports.model_report import model_report
from keras_xla.training.steps import fill_predict
from keras_xla.training.steps.last_batch import Fill, fills
from tests.training.helpers import LOSS, Log, X, Y, classifier

WEIGHTS = np.linspace(0, 2, len(X)).astype("float32")
on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="on TensorFlow the graph does it")
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.data, and Keras' own XLA")


def compiled(model, loss=LOSS, metrics=("accuracy",), **options):
    model.compile("sgd", loss, metrics=list(metrics), **options)
    model.evaluate(X, Y, batch_size=24, verbose=0)  # which makes the metrics
    return model


def with_layer(layer):
    return keras.Sequential([keras.Input((20,)), layer, keras.layers.Dense(3)])


def with_layer_of(shape, layer):
    """Like `with_layer`, for a layer of rows of this shape."""
    return keras.Sequential(
        [keras.Input((20,)), keras.layers.Reshape(shape), layer, keras.layers.Flatten(), keras.layers.Dense(3)]
    )


def regression(metric):
    return compiled(keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)]), "mse", [metric])


@pytest.mark.slow
def test_models_whose_rows_are_each_alone_are_filled():
    assert fills(compiled(with_layer_of((5, 4, 1), keras.layers.ZeroPadding2D())), "train")
    assert fills(regression("mae"), "train")
    assert fills(compiled(classifier(dropout=0.2)), "train")
    assert fills(compiled(with_layer(keras.layers.LayerNormalization())), "test")
    assert fills(compiled(with_operation(lambda x: keras.ops.relu(x) + 1)), "test")
    assert fills(compiled(classifier(), metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]), "train")


@functools.wraps(keras.losses.mean_squared_error)
def of_all_rows(y, outputs):
    return keras.ops.sqrt(keras.ops.mean((keras.ops.cast(y, "float32") - outputs) ** 2))


@functools.wraps(keras.activations.relu)
def centred(x):
    return x - keras.ops.mean(x, axis=0)


def test_a_name_that_was_copied_from_keras_is_not_keras():
    assert not fills(regression(of_all_rows), "train")
    assert not fills(compiled(with_layer(keras.layers.Dense(4, activation=centred))), "train")
    assert fills(compiled(with_layer(keras.layers.Dense(4, activation="relu"))), "train")


class OwnStep(keras.Sequential):
    def train_step(self, *args):
        return super().train_step(*args)


class OwnLayer(keras.layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, axis=0)


def sparse(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def with_operation(operation):
    inputs = keras.Input((20,))
    return keras.Model(inputs, keras.layers.Dense(3)(operation(inputs)))


@functools.wraps(keras.losses.sparse_categorical_crossentropy)
def of_keras_name(y, p):
    return keras.ops.mean(p)


class OwnLoss(keras.losses.SparseCategoricalCrossentropy):
    def call(self, y_true, y_pred):
        return keras.ops.sqrt(keras.ops.mean(super().call(y_true, y_pred)))


def one_number():
    """For each row, without an axis for it: a loss takes the mean over the rows."""
    return keras.Sequential([keras.Input((20,)), keras.layers.Dense(1), keras.layers.Reshape(())])


@pytest.mark.parametrize(
    "make",
    [
        lambda: compiled(with_layer(keras.layers.BatchNormalization())),
        lambda: compiled(with_layer(keras.layers.GaussianNoise(0.1))),
        lambda: compiled(with_layer(keras.layers.Dense(3, activity_regularizer="l2"))),
        lambda: compiled(with_layer(OwnLayer())),
        lambda: compiled(OwnStep([keras.Input((20,)), keras.layers.Dense(3)])),
        lambda: compiled(classifier(), loss=lambda y, p: keras.ops.mean(p)),
        lambda: compiled(classifier(), loss=OwnLoss(from_logits=True)),
        lambda: compiled(classifier(), loss=of_keras_name),
        lambda: compiled(classifier(), metrics=[lambda y, p: keras.ops.mean(p)]),
        lambda: compiled(classifier(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, axis=1)),
        lambda: compiled(
            classifier(), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        ),
        lambda: compiled(one_number(), loss="mse", metrics=[]),
        lambda: compiled(with_layer_of((5, 4, 1), keras.layers.RandomFlip())),
        lambda: compiled(with_layer_of((5, 4), keras.layers.Masking())),
        lambda: regression(keras.metrics.R2Score()),
        lambda: regression(keras.metrics.PearsonCorrelation()),
        lambda: regression(keras.losses.MeanAbsoluteError()),
        lambda: regression(keras.losses.dice),
        lambda: regression(keras.metrics.CosineSimilarity(axis=0)),
    ],
    ids=[
        "batch norm",
        "noise",
        "activity",
        "own layer",
        "own step",
        "own loss",
        "own loss made of Keras' own",
        "own loss with a name of Keras' own",
        "own metric",
        "axis",
        "ignored",
        "one number",
        "random image layer",
        "mask",
        "R2",
        "correlation",
        "a loss as a metric",
        "a metric of all rows",
        "a metric along the rows",
    ],
)
def test_those_whose_rows_may_depend_on_each_other_are_not(make):
    assert not fills(make(), "train")


def test_what_is_filled():
    fill = Fill(classifier())
    filled = [fill(batch) for batch in ((X[:8], None, {"a": Y[:8]}), (X[8:13], None, {"a": Y[8:13]}))]
    assert [int(each.rows) for each in filled] == [8, 5]
    assert filled[1].batch[0].shape == (8, 20) and filled[1].batch[2]["a"].shape == (8,)
    np.testing.assert_array_equal(filled[1].batch[0][5:], np.repeat(X[12:13], 3, axis=0))
    for odd in ((X[:8], Y[:7]), (X[:0], Y[:0]), np.float32(1)):
        assert Fill(classifier())(odd) is odd


def test_sparse_batches_are_not_filled():
    fill = Fill(classifier())
    for rows in (8, 5):
        batch = scipy.sparse.csr_matrix(X[:rows]), Y[:rows]
        assert fill(batch) is batch


def results(compile_, make, fit, **options):
    model = make()
    compile_(model, "adam", **options)
    history = model.fit(epochs=3, batch_size=16, verbose=0, **fit).history
    evaluated = model.evaluate(
        *(fit[name] for name in ("x", "y")), sample_weight=fit.get("sample_weight"), batch_size=16, verbose=0
    )
    return [history, evaluated, model.get_weights()]


def test_a_model_that_builds_itself_in_its_first_step_trains_as_before():
    losses = []
    for wrap in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(3)])
        wrap(model, "sgd", LOSS, jit_compile=True)
        losses.append(model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


STEPS = 6  # as many as rows in a batch: weights along the wrong axis would go unnoticed elsewhere


def sequences():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((STEPS, 4)), keras.layers.Dense(3)])


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
@pytest.mark.quick("mean_with_sample_weight", "sum")
def test_losses_with_a_number_for_each_position(reduction):
    x, y = np.resize(X, (20, STEPS, 4)), np.resize(Y, (20, STEPS))
    loss, histories = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction), []
    for wrap in (keras.Model.compile, compile):
        model = sequences()
        wrap(model, "sgd", loss, metrics=["accuracy"], jit_compile=True)
        log = Log()
        history = model.fit(x, y, batch_size=STEPS, epochs=2, shuffle=False, verbose=0).history
        histories.append([*history.values(), model.evaluate(x, y, batch_size=STEPS, verbose=0), *model.get_weights()])
    assert log.kinds() == ["train", "test"]  # 20 rows are three full batches and 2
    for made, expected in zip(histories[1], histories[0], strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("positions", [4, STEPS])
@pytest.mark.quick("4")
def test_labels_without_the_last_axis_that_the_outputs_have(positions):
    """Keras drops that axis, so that its loss gives a number for each row, not for each position."""
    x, y = np.resize(X, (20, positions, 4)), np.resize(Y, (20, positions)) % 2
    histories = []
    for wrap in (keras.Model.compile, compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((positions, 4)), keras.layers.Dense(1)])
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        wrap(model, "sgd", loss, metrics=["binary_accuracy"], jit_compile=True)
        log = Log()
        history = model.fit(x, y, batch_size=STEPS, epochs=2, shuffle=False, verbose=0).history
        histories.append([*history.values(), *model.get_weights()])
    assert log.kinds() == ["train"]
    for made, expected in zip(histories[1], histories[0], strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-6)


def two_outputs():
    keras.utils.set_random_seed(0)
    a = keras.Input((20,))
    hidden = keras.layers.Dense(8, "relu", kernel_regularizer="l2")(a)
    return keras.Model(a, {"c": keras.layers.Dense(3, name="c")(hidden), "d": keras.layers.Dense(1, name="d")(hidden)})


CASES = {
    "metrics": (
        classifier,
        {"x": X, "y": Y},
        {"loss": LOSS, "metrics": ["accuracy"], "weighted_metrics": ["accuracy"]},
    ),
    "sample weights": (
        classifier,
        {"x": X, "y": Y, "sample_weight": WEIGHTS},
        {"loss": LOSS, "metrics": ["accuracy"], "weighted_metrics": ["accuracy"]},
    ),
    "validation and class weights": (
        classifier,
        {"x": X, "y": Y, "validation_split": 0.4, "class_weight": {0: 1.0, 1: 0.5, 2: 3.0}},
        {"loss": LOSS, "metrics": ["accuracy"]},
    ),
    "several outputs": (
        two_outputs,
        {"x": X, "y": {"c": Y, "d": X[:, 0]}},
        {"loss": {"c": LOSS, "d": "mse"}, "metrics": {"d": ["mae"]}, "loss_weights": {"c": 1.0, "d": 0.3}},
    ),
    "sums": (classifier, {"x": X, "y": np.eye(3)[Y]}, {"loss": keras.losses.MeanSquaredError(reduction="sum")}),
    "dropout": (lambda: classifier(dropout=0.4), {"x": X, "y": Y}, {"loss": LOSS}),
}


def listed(model):
    return keras.Model(model.inputs, [model.output["c"], model.output["d"]])


@pytest.mark.parametrize(
    ("make", "targets", "loss"),
    [
        (two_outputs, (Y, X[:, :1]), {"c": LOSS, "d": "mse"}),
        (lambda: listed(two_outputs()), {"c": Y, "d": X[:, :1]}, [LOSS, "mse"]),
        (classifier, [Y], LOSS),
    ],
    ids=["a tuple for a dict", "a dict for a list", "a list for one"],
)
@pytest.mark.slow
def test_targets_in_another_structure_than_the_outputs_are_not_filled(make, targets, loss):
    made, expected = (results(compile_, make, {"x": X, "y": targets}, loss=loss) for compile_ in (ours, plainly))
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), made, expected)


def plainly(model, *args, **options):
    model.compile(*args, **options)


def ours(model, *args, **options):
    return compile(model, *args, jit_compile=True, **options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick("sample weights")
def test_results_are_those_of_plain_keras_from_one_executable(case):
    make, fit, options = CASES[case]
    expected = results(keras.Model.compile, make, fit, **options)
    log = Log()
    made = results(ours, make, fit, **options)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), made, expected)
    assert log.kinds() == ["train", "test"]


@pytest.mark.parametrize("of", ["targets", "outputs"])
def test_an_infinite_loss_of_the_last_row_is_infinite(of):
    """That row is repeated, at no weight; the gradients are finite if the targets are what is large."""
    x, y, results = np.ones((12, 1), "float32"), np.zeros((12, 1), "float32"), []
    (y if of == "targets" else x)[-1] = 1e20
    for compile_ in (plainly, ours):
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), dense])
        compile_(model, "sgd", loss="mse", metrics=["mse"])
        log = Log()
        evaluated = model.evaluate(x, y, batch_size=8, verbose=0)
        history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
        results.append([evaluated, history, model.get_weights() if of == "targets" else []])
    assert log.kinds() == ["test", "train"] and results[0][0] == [np.inf, np.inf]
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), *results)


@pytest.mark.parametrize(
    "metric",
    [keras.losses.MeanAbsoluteError(), keras.losses.dice, keras.metrics.CosineSimilarity(axis=0)],
    ids=["a loss as a metric", "a metric of all rows", "a metric along the rows"],
)
def test_metrics_that_give_no_number_for_each_row_are_those_of_plain_keras(metric):
    y, made = np.abs(X[:, :2]), []
    for compile_ in (plainly, ours):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
        compile_(model, "sgd", loss="mse", metrics=[metric])
        made.append(model.fit(X, y, batch_size=32, shuffle=False, verbose=0).history)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), *made)


@on_jax
def test_where_random_numbers_of_rows_depend_on_how_many_there_are():
    import jax

    before = jax.config.jax_threefry_partitionable
    try:
        for same in (True, False):
            jax.config.update("jax_threefry_partitionable", same)
            assert fills(compiled(classifier(dropout=0.2)), "train") == same
            assert fills(compiled(classifier()), "train")
    finally:
        jax.config.update("jax_threefry_partitionable", before)


@pytest.mark.slow
def test_a_model_that_is_not_filled_compiles_twice():
    make = lambda: with_layer(keras.layers.BatchNormalization())  # noqa: E731
    keras.utils.set_random_seed(0)
    expected = results(keras.Model.compile, make, {"x": X, "y": Y}, loss=LOSS)
    keras.utils.set_random_seed(0)
    log = Log()
    made = results(ours, make, {"x": X, "y": Y}, loss=LOSS)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), made, expected)
    assert log.kinds() == ["train", "train", "test", "test"]


@on_jax
@pytest.mark.quick_on_jax
def test_plain_compile_gives_the_model_its_steps_back():
    model = classifier()
    compile(model, "sgd", LOSS)
    model.fit(X, Y, batch_size=16, verbose=0)
    assert "train_step" in vars(model)
    model.compile("sgd", LOSS, jit_compile=False)
    assert "train_step" not in vars(model)
    model.fit(X, Y, batch_size=16, verbose=0)


def dicts(size=16, repeat=1, drop_remainder=False):
    """A dataset of dicts, the last batch of each pass smaller."""
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices(({"a": X, "b": X[:, :1]}, Y))
    return pairs.batch(size, drop_remainder=drop_remainder).repeat(repeat)


def of_dicts():
    keras.utils.set_random_seed(0)
    a, b = keras.Input((20,), name="a"), keras.Input((1,), name="b")
    hidden = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()([a, b]))
    return keras.Model({"a": a, "b": b}, keras.layers.Dense(3)(hidden))


def fitted(compile_, data, **options):
    model = of_dicts()
    compile_(model, "adam", LOSS, metrics=["accuracy"], **options)
    history = model.fit(data, epochs=2, validation_data=data, verbose=0).history
    return [history, model.evaluate(data, verbose=0), model.get_weights()]


@on_tensorflow
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_datasets_with_smaller_batches_here_and_there(steps_per_execution):
    options = {"steps_per_execution": steps_per_execution}
    log = Log()
    made = fitted(ours, dicts(repeat=2), **options)
    assert log.kinds() == ["train", "test"]
    expected = fitted(keras.Model.compile, dicts(repeat=2), **options)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), made, expected)


@on_tensorflow
@pytest.mark.parametrize(
    ("data", "rtol"),
    [(lambda: dicts(24), 1e-6), (lambda: dicts(16, drop_remainder=True), 0)],
    ids=["that could be smaller", "of a known size"],
)
def test_full_batches_give_what_keras_own_xla_gives(data, rtol):
    made, expected = fitted(ours, data()), fitted(keras.Model.compile, data(), jit_compile=True)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol), made, expected)


@on_tensorflow
@pytest.mark.slow
def test_a_larger_batch_compiles_and_is_the_one_to_fill_up_to():
    data = dicts(8).take(2).concatenate(dicts(16)).concatenate(dicts(8))
    log = Log()
    made = fitted(ours, data)
    assert log.kinds() == ["train", "train", "test", "test"]
    expected = fitted(keras.Model.compile, data)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), made, expected)


@on_tensorflow
def test_batches_of_other_lengths_are_not_filled():
    import tensorflow as tf

    def data():
        rows = [(X[:8, :n, None], Y[:8]) for n in (20, 10)] + [(X[:4, :10, None], Y[:4])]
        spec = tf.TensorSpec((None, None, 1)), tf.TensorSpec((None,), tf.int32)
        return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec)

    def run(compile_):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((None, 1)), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)])
        compile_(model, "sgd", LOSS)
        return model.evaluate(data(), verbose=0)

    log = Log()
    made = run(ours)
    assert [event.shapes for event in log.new()] == [
        "x: (8, 20, 1) float32, y: (8,) int32",
        "x: (8, 10, 1) float32, y: (8,) int32",
    ]
    np.testing.assert_allclose(made, run(keras.Model.compile), rtol=1e-5)


@on_tensorflow
def test_auto_leaves_the_smaller_batch_to_the_plain_graph():
    assert_equal = np.testing.assert_array_equal
    made, expected = fitted(compile, dicts()), fitted(keras.Model.compile, dicts())
    keras.tree.map_structure(assert_equal, made, expected)


@on_tensorflow
def test_what_is_wrong_is_said_in_keras_words():
    for compile_ in (keras.Model.compile, ours):
        model = classifier()
        compile_(model, "sgd", "mse", metrics=["accuracy"])
        with pytest.raises(ValueError, match="incompatible with the layer"):
            model.fit(X[:, :7], Y, verbose=0)


@pytest.mark.quick_on_jax
@pytest.mark.parametrize("metric", ["Precision", "AUC", "BinaryIoU", "BinaryAccuracy"])
@pytest.mark.quick("BinaryIoU", "AUC", "BinaryAccuracy")
def test_metrics_of_outputs_with_more_axes_are_those_of_plain_keras(metric):
    """With as many positions as rows in a batch, a weight for each row would be taken for one of each position."""
    rng = np.random.default_rng(0)
    x, y = rng.random((14, 10, 4)).astype("float32"), rng.integers(0, 2, (14, 10, 1))
    shown = []
    for made in (compile, keras.Model.compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((10, 4)), keras.layers.Dense(1, "sigmoid")])
        how = {"jit_compile": True} if made is compile else {}
        made(model, "sgd", "binary_crossentropy", metrics=[getattr(keras.metrics, metric)()], **how)
        model.fit(x, y, batch_size=10, verbose=0)
        shown.append(model.evaluate(x, y, batch_size=10, verbose=0))
    np.testing.assert_allclose(*shown, rtol=1e-5)


def masked(series, mask):
    return keras.layers.SimpleRNN(5, return_sequences=True)(series, mask=mask)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rows", [32, 20])
@pytest.mark.quick_on_jax("32-True")
@pytest.mark.quick("32-True", "32-False")
def test_a_mask_that_a_layer_was_given_counts_in_the_loss(rows, nested):
    """It is not made by a layer that makes masks."""
    x = np.random.default_rng(0).normal(size=(rows, 6, 4)).astype("float32")
    mask = np.arange(6)[None] <= np.arange(rows)[:, None] % 6
    shown = []
    for compile_ in (plainly, ours):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6, 4)), keras.Input((6,), dtype="bool")
        hidden = masked(*inputs)
        if nested:
            others = keras.Input((6, 4)), keras.Input((6,), dtype="bool")
            inputs, hidden = others, keras.Model(inputs, hidden)(others)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        compile_(model, "sgd", "mse")
        model.fit([x, mask], x[..., :1] ** 2, batch_size=8, shuffle=False, verbose=0)
        shown.append(model.evaluate([x, mask], x[..., :1] ** 2, batch_size=8, verbose=0))
    np.testing.assert_allclose(*shown, rtol=1e-5)


@pytest.mark.filterwarnings("error")
def test_a_loss_of_a_users_own_may_have_an_attribute_fn():
    class Twice(keras.losses.Loss):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn

        def call(self, y_true, y_pred):
            return 2 * self.fn(y_true, y_pred)

    losses = []
    for compile_ in (plainly, ours):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
        compile_(model, "sgd", Twice(keras.losses.mean_squared_error))
        losses.append(model.fit(X, X[:, :1], batch_size=16, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@on_tensorflow
def test_a_metric_may_be_there_twice():
    shown = []
    for compile_ in (plainly, ours):
        keras.utils.set_random_seed(0)
        metric = keras.metrics.MeanAbsoluteError(name="off")
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
        compile_(model, "sgd", "mse", metrics=[metric], weighted_metrics=[metric])
        shown.append(model.evaluate(X, X[:, :1], batch_size=24, verbose=0))
    np.testing.assert_allclose(*shown, rtol=1e-5)


@on_tensorflow
@pytest.mark.slow
def test_auto_leaves_smaller_batches_of_later_calls_to_the_plain_graph():
    """Where the usual batches are known from an earlier call, a smaller one is the first that is asked about."""
    model = compile(classifier(), "sgd", LOSS)
    for rows, epochs in ((70, 1), (71, 50), (73, 50)):
        model.fit(X[:rows], Y[:rows], batch_size=16, epochs=epochs, verbose=0)
        model.evaluate(X[:rows], Y[:rows], batch_size=16, verbose=0)
        model.predict(X[:rows], batch_size=16, verbose=0)
    decisions = model_report(model).history.decisions
    others = [decision for decision in decisions if "x: (16" not in decision.shapes]
    assert len(others) > 5 and all(decision.reason.startswith("other shapes") for decision in others), others


@on_tensorflow
@pytest.mark.parametrize("again", [False, True])
def test_auto_asks_about_the_usual_batches_of_a_fit_that_goes_on(again):
    """One that begins at a later epoch, or whose model is compiled again in the middle."""

    class CompilesAgain(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if again and epoch == 4:
                compile(self.model, "sgd", LOSS)
                self.model.make_train_function()

    model = compile(classifier(), "sgd", LOSS)
    model.fit(X[:64], Y[:64], batch_size=16, initial_epoch=3, epochs=6, callbacks=[CompilesAgain()], verbose=0)
    asked = [decision for decision in model_report(model).history.decisions if decision.kind == "train"]
    assert asked and not any(decision.reason.startswith("other shapes") for decision in asked), asked


def test_an_update_of_a_metric_that_the_user_has_put_there_stays():
    metric = keras.metrics.MeanAbsoluteError(name="a")
    update = metric.update_state
    metric.update_state = own = lambda y, p, sample_weight=None: update(y * 10, p * 10, sample_weight)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    compile(model, keras.optimizers.SGD(0.0), "mse", metrics=[metric], jit_compile=True)
    ones = np.ones((40, 1))
    model.fit(ones, ones, verbose=0)
    assert model.evaluate(ones, ones, verbose=0)[1] == 10 and metric.update_state is own


@on_jax
def test_a_step_takes_keywords_as_before():
    model = compile(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), "sgd", "mse")
    ones = np.ones((40, 1), "float32")
    model.fit(ones, ones, verbose=0)
    kinds = model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables
    state = tuple([variable.value for variable in variables] for variables in kinds)
    assert set(model.train_step(state=state, data=(ones, ones))[0]) == {"loss"}


@pytest.mark.quick_on_jax
@pytest.mark.parametrize(
    ("last", "loss", "options"),
    [
        ("softmax", "sparse_categorical_crossentropy", {}),
        ("softmax", "categorical_crossentropy", {"label_smoothing": 0.1}),
        ("sigmoid", "binary_crossentropy", {}),
        ("sigmoid", "binary_crossentropy", {"label_smoothing": 0.1, "from_logits": True}),
        ("sigmoid", "categorical_crossentropy", {}),  # not a good idea; Keras takes the logits all the same
    ],
)
@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`")
def test_sure_predictions_have_the_losses_and_gradients_of_plain_keras(last, loss, options):
    """Keras computes crossentropies from logits, also where an activation is behind them: nothing is clipped."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype("float32"), np.arange(40) % 3
    if not loss.startswith("sparse"):
        y = np.eye(3, dtype="float32")[y]
    shown, weights = [], []
    for made in (compile, keras.Model.compile):
        keras.utils.set_random_seed(0)
        wide = keras.initializers.RandomNormal(stddev=30, seed=1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, last, kernel_initializer=wide)])
        kind = "".join(part.title() for part in loss.split("_"))
        metrics = [getattr(keras.metrics, kind)(name="m", **options)]
        given = getattr(keras.losses, kind)(**options)
        made(model, keras.optimizers.SGD(0.01), given, metrics=metrics, jit_compile=True)
        told = model.evaluate(x, y, verbose=0)
        history = model.fit(x, y, epochs=3, shuffle=False, verbose=0).history
        shown.append([*told, *history["loss"], *history["m"]])
        weights.append(model.get_weights()[0])
    np.testing.assert_allclose(shown[0], shown[1], rtol=1e-4)
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-4)


def test_predict_of_a_model_with_a_predict_step_of_its_own_sees_no_added_rows():
    x, shown = np.random.default_rng(0).normal(size=(40, 4)).astype("float32"), []
    for made in (compile, keras.Model.compile):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        made(model, "sgd", "mse", jit_compile=True)
        own = model.predict_step

        def centered(*arguments, own=own):
            outputs, *state = own(*arguments) if keras.backend.backend() == "jax" else (own(*arguments),)
            outputs = outputs - keras.ops.mean(outputs, axis=0)
            return (outputs, *state) if state else outputs

        model.predict_step = centered
        shown.append(model.predict(x, verbose=0))
    np.testing.assert_allclose(*shown, rtol=1e-4, atol=1e-5)


def test_predict_answers_for_arrays_as_a_callback_has_changed_them():
    class Changes(keras.callbacks.Callback):
        def on_predict_begin(self, logs=None):
            self.x[:] = 0

    shown = []
    for made in (compile, keras.Model.compile):
        model, changes = classifier(), Changes()
        made(model, "sgd", LOSS, jit_compile=True)
        changes.x = X[:50].copy()
        shown.append(model.predict(changes.x, batch_size=8, callbacks=[changes], verbose=0))
    np.testing.assert_allclose(*shown, rtol=1e-4, atol=1e-5)


def test_predict_copies_no_file_and_no_large_array_for_the_last_batch(tmp_path, monkeypatch):
    given = np.memmap(tmp_path / "x", "float32", "w+", shape=(50, 20))
    given[:] = X[:50]
    compiled_for = []
    for most, x in ((fill_predict.MOST_BYTES, X[:50]), (fill_predict.MOST_BYTES, given), (X[:50].nbytes - 1, X[:50])):
        monkeypatch.setattr(fill_predict, "MOST_BYTES", most)
        model = classifier()
        compile(model, "sgd", LOSS, jit_compile=True)
        log = Log()
        outputs = model.predict(x, batch_size=8, verbose=0)
        compiled_for.append(len(log.new()))
        np.testing.assert_allclose(outputs, model(X[:50]), rtol=1e-4, atol=1e-5)
    assert compiled_for == [1, 2, 2]


def test_a_report_changes_nothing_about_the_last_batch_of_predict():
    compiled = []
    for callbacks in ([], [CompileReport()]):
        model = classifier()
        compile(model, "sgd", LOSS, jit_compile=True)
        log = Log()
        model.predict(X[:50], batch_size=8, callbacks=callbacks, verbose=0)
        compiled.append(len(log.new()))
    assert compiled == [1, 1]


@pytest.mark.parametrize("mode", ["int", "multi_hot", "count"])
@pytest.mark.parametrize("bins", [2, 10])
def test_numbers_put_into_bins_are_predicted_as_in_plain_keras(mode, bins):
    """Of a tensor of one axis, some modes count the numbers of all rows."""
    x, shown = np.linspace(-2, 2, 11, dtype="float32"), []
    for made in (compile, keras.Model.compile):
        inputs = keras.Input(())
        edges = np.linspace(-1, 1, bins).tolist()
        model = keras.Model(inputs, keras.layers.Discretization(edges, output_mode=mode)(inputs))
        made(model, "sgd", jit_compile=True)
        shown.append(model.predict(x, batch_size=8, verbose=0))
    np.testing.assert_array_equal(*shown)
