"""What keras_xla uses of Keras without a promise: each name, and how Keras calls its trainers."""

import sys

import keras
import numpy as np
import pytest

from keras_xla.private.keras import compiled_model, graphs, layers, masks, structures, trainer, variables
from keras_xla.private.keras.quantize_check import QUANTIZE_CHECK
from keras_xla.private.names import Gone, Name
from tests.private.helpers import names_of

MODULES = compiled_model, graphs, layers, masks, structures, trainer, variables
X, Y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
TENSORFLOW = keras.backend.backend() == "tensorflow"


class Step(keras.callbacks.Callback):
    """Writes down what is called."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def set_model(self, model):
        super().set_model(model)
        self.calls.append("set_model")

    def on_train_begin(self, logs=None):
        self.calls.append("on_train_begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"on_epoch_begin of {self.params['epochs']} with {self.params['steps']} steps")

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"on_train_batch_end {batch}")


def made():
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(keras.Sequential([keras.layers.Dense(3)])(x)))
    model.compile(loss="mse", metrics=["mae"])
    model.train_on_batch(X, Y)
    return model


@pytest.fixture(scope="module")
def model():
    return made()


def owners(model):
    """What has each of the names."""
    x = model.outputs[0]
    return {
        layers.FLATTEN: model,
        compiled_model.BUILD: model,
        compiled_model.LOSSES: model,
        compiled_model.USERS_LOSSES: model._compile_loss,
        compiled_model.METRICS: model,
        compiled_model.LOSS_OPTIONS: keras.losses.MeanSquaredError(),
        compiled_model.METRIC_FUNCTION: keras.metrics.MeanAbsoluteError(),
        compiled_model.METRIC_OPTIONS: keras.metrics.MeanAbsoluteError(),
        compiled_model.LOSS_TRACKER: model,
        layers.TAKES_TRAINING: model,
        layers.TRACKER: model,
        variables.UNMADE: sys.modules[variables.UNMADE.owner],
        variables.AUTOCAST: sys.modules[variables.AUTOCAST.owner],
        variables.SCOPE: sys.modules[variables.SCOPE.owner],
        trainer.LAST_LOGS: model,
        trainer.LOGS_IN_ORDER: model,
        masks.MASK: sys.modules[masks.MASK.owner],
        masks.PUT_MASK: sys.modules[masks.PUT_MASK.owner],
        graphs.HISTORY: x,
        graphs.CALLS: model.layers[-1],
        graphs.NODES: keras.Function(model.inputs, model.outputs),
        trainer.TRACES: keras.callbacks.TensorBoard("unused", profile_batch=2) if TENSORFLOW else None,
        variables.INITIALIZE: keras.Variable(0.0),
        variables.PATH: keras.Variable(0.0),
        structures.OPTREE: sys.modules[structures.OPTREE.owner],
        trainer.MAKE_FUNCTION: model,
        QUANTIZE_CHECK: model.layers[-1],
    } | {name: keras.Model for name in trainer.MAKE_FUNCTIONS}


@pytest.mark.parametrize("name", [*names_of(*MODULES), QUANTIZE_CHECK], ids=str)
def test_name(name: Name, model):
    owner = owners(model)[name]
    if owner is None:
        pytest.skip("of TensorFlow's trainer")
    assert name.of(owner) is not None


def test_all_layers_at_any_depth(model):
    kinds = [type(layer).__name__ for layer in layers.flat_layers(model)]
    assert kinds.count("Dense") == 2 and kinds.count("Sequential") == 1 and model in layers.flat_layers(model)


def test_the_symbolic_build_makes_all_state():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", loss="mse", metrics=["mae"])
    assert not model.optimizer.built and not compiled_model.compiled_metrics(model).built
    compiled_model.symbolic_build(model, (keras.KerasTensor((4, 3)), keras.KerasTensor((4, 2))))
    assert (
        model.optimizer.built
        and compiled_model.compiled_metrics(model).built
        and compiled_model.compiled_losses(model).built
    )


def test_losses_and_metrics_as_they_were_given(model):
    assert compiled_model.users_losses(model) == "mse"
    assert [metric.name for metric in compiled_model.compiled_metrics(model).metrics] == ["mae"]
    assert compiled_model.loss_tracker(model).name == "loss"
    assert compiled_model.loss_options(keras.losses.CategoricalCrossentropy(axis=1))["axis"] == 1
    assert compiled_model.loss_options(lambda y, p: 0) == {}
    assert layers.is_of_keras(compiled_model.metric_function(keras.metrics.MeanAbsoluteError()))
    assert not layers.is_of_keras(compiled_model.metric_function(keras.metrics.MeanMetricWrapper(lambda y, p: y)))
    assert compiled_model.metric_function(keras.metrics.AUC()) is None
    assert compiled_model.metric_options(keras.metrics.CosineSimilarity(axis=0)) == {"axis": 0}
    assert compiled_model.metric_options(keras.metrics.AUC()) == {}


def test_a_layer_that_is_forgotten_takes_its_weights_along():
    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.one, self.two = (keras.layers.Dense(1) for _ in range(2))
            self.one.build((None, 3))
            self.two.build((None, 3))
            self.built = True

    layer = Outer()
    layers.forget(layer, "one")
    assert not hasattr(layer, "one") and layer.weights == layer.two.weights


def test_losses_before_compile():
    model = keras.Sequential([keras.layers.Dense(1)])
    assert compiled_model.users_losses(model) is None and compiled_model.compiled_metrics(model) is None


def test_evaluate_returns_logs_as_it_does(model):
    logs = model.evaluate(X, Y, return_dict=True, verbose=0)
    assert trainer.last_logs(model, logs).keys() == logs.keys()
    assert trainer.logs_in_order(model, logs) == [logs["loss"], logs["mae"]]


def test_masks():
    x = keras.layers.Masking()(np.zeros((1, 2, 3), "float32"))
    mask = masks.mask_of(x)
    assert mask is not None and masks.mask_of(X) is None
    y = keras.ops.ones((1, 2))
    assert masks.put_mask(y, None) is y and masks.mask_of(y) is None
    assert masks.put_mask(y, mask) is y and masks.mask_of(y) is mask


def test_nodes_in_order(model):
    nodes = graphs.nodes_of(model.inputs, model.outputs)
    assert [type(node.operation).__name__ for node in nodes] == ["Sequential", "Dense"]
    assert graphs.maker_of(model.outputs[0]) is nodes[-1].operation
    args, _ = nodes[0].arguments.fill_in({id(model.inputs[0]): X})
    assert args[0] is X
    assert nodes[0].input_tensors[0] is model.inputs[0] and nodes[-1].outputs[0] is model.outputs[0]


def test_layers_that_run_in_tf_data():
    assert layers.runs_in_tf_data(keras.layers.Rescaling(2.0))
    assert not layers.runs_in_tf_data(keras.layers.Dense(1))


def test_layers_whose_call_takes_training(model):
    assert layers.takes_training(keras.layers.Dropout(0.5)) and not layers.takes_training(keras.layers.Rescaling(1.0))


def test_fit_asks_for_its_function_between_set_model_and_on_train_begin(monkeypatch):
    calls, model = [], made()
    make = model.make_train_function

    def noted(*args, **kwargs):
        calls.append("make_train_function")
        made = make(*args, **kwargs)
        step = model.train_function

        def train(*args):
            calls.append("train_function")
            return step(*args)

        model.train_function = train
        return made

    model.make_train_function = noted
    model.fit(X, Y, batch_size=5, epochs=2, callbacks=[Step(calls)], verbose=0)
    assert calls == [
        "set_model",
        "make_train_function",
        "on_train_begin",
        *2
        * [
            "on_epoch_begin of 2 with 2 steps",
            *("train_function", "on_train_batch_end 0", "train_function", "on_train_batch_end 1"),
        ],
    ]


def test_evaluate_of_fits_validation_data_is_called_with_the_keyword():
    model, given = made(), []
    evaluate = model.evaluate

    def noted(*args, **kwargs):
        given.append(kwargs)
        return evaluate(*args, **kwargs)

    model.evaluate = noted
    model.fit(X, Y, validation_data=(X, Y), verbose=0)
    assert given[0][trainer.CACHED_EVALUATION] is True


@pytest.mark.parametrize("kind", ["train", "test", "predict"])
def test_a_function_runs_one_step_a_call(kind):
    model = made()
    function, iterator = trainer.step_function(model, kind), iter([(X, Y)])
    if TENSORFLOW and kind == "predict":
        assert function([(X, Y)]).shape == Y.shape
        return
    if TENSORFLOW:
        assert function(iterator).keys() >= {"loss"}
        return
    wanted = {"trainable_variables", "non_trainable_variables"}
    wanted |= {"train": {"optimizer_variables", "metrics_variables"}, "test": {"metrics_variables"}}.get(kind, set())
    state = model._get_jax_state(**dict.fromkeys(wanted, True))
    _, after = function(state, iterator)
    assert [len(values) for values in after] == [len(values) for values in state]


@pytest.mark.skipif(TENSORFLOW, reason="of JAX: TensorFlow's trainer takes the batches out of the iterator itself")
@pytest.mark.parametrize("steps", [1, 2])
def test_whether_an_execution_takes_its_batches_one_by_one(steps):
    model, taken = made(), []
    model.steps_per_execution = steps

    def watched(state, iterator):
        def items():
            for item in iterator:
                taken.append(keras.tree.flatten(item)[0].ndim)
                yield item

        return function(state, items())

    function = trainer.step_function(model, "train")
    model.train_function = watched
    model.fit(X, Y, batch_size=2, verbose=0)
    assert trainer.takes_single_batches(model) == (max(taken) == X.ndim)


@pytest.mark.skipif(not TENSORFLOW, reason="of TensorFlow's variables")
def test_a_variable_stands_on_the_memory_of_another():
    import tensorflow as tf

    source, variable = tf.Variable([1.0, 2.0]), keras.Variable([0.0, 0.0])
    variables.stand_on(variable, source)
    source.assign([3.0, 4.0])
    np.testing.assert_array_equal(variable.value, [3.0, 4.0])


def test_assignments_come_to_the_scope():
    seen = []

    class Scope(keras.StatelessScope):
        def add_update(self, update):
            seen.append(("assigned", update[0]))
            super().add_update(update)

        def get_current_value(self, variable):
            seen.append(("read", variable))
            return super().get_current_value(variable)

    variable = keras.Variable(1.0)
    with Scope():
        _ = variable + 1
        variable.assign(2.0)
    assert ("read", variable) in seen and ("assigned", variable) in seen
    np.testing.assert_array_equal(variable.value, 1.0)


@pytest.mark.filterwarnings("ignore:keras_xla")
@pytest.mark.parametrize("name", trainer.MAKE_FUNCTIONS, ids=str)
def test_a_model_class_without_them_is_not_taken(name, monkeypatch):
    monkeypatch.delattr(next(kind for kind in keras.Model.__mro__ if name.name in vars(kind)), name.name)
    with pytest.raises(Gone, match=name.name):
        trainer.require_step_functions(keras.Model)
