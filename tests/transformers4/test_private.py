"""What keras_xla uses of transformers 4 and of Keras 2 without a promise."""

import tf_keras
import transformers

from keras_xla.private import tf_keras as private_keras
from keras_xla.private import transformers as private


class Model:
    """What `generation_config` looks at."""

    def __init__(self):
        self.config = transformers.GPT2Config()
        self.generation_config = transformers.GenerationConfig.from_model_config(self.config)


def test_a_config_that_was_made_from_the_models_follows_that():
    model = Model()
    model.config.top_k = 7
    assert private.generation_config(model).top_k == 7


def test_one_that_was_changed_does_not():
    model = Model()
    model.config.top_k, model.generation_config.top_p = 7, 0.5
    assert private.generation_config(model) is model.generation_config


def test_steps_of_keras_2():
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model.compile(loss="mse")
    assert not private_keras.loops_over_steps(model)
    model.compile(loss="mse", steps_per_execution=3)
    for kind in ("train", "test", "predict"):
        private_keras.require_steps(model, kind)
    assert private_keras.is_model(model) and private_keras.loops_over_steps(model)
    private_keras.count_step(model, "train")
    assert int(private_keras.COUNTERS["train"].of(model)) == 1


def test_a_callback_of_ours_does_not_have_keras_time_all_callbacks():
    """It would warn of those that take longer than a step which ran before."""

    class Ours(private_keras.AnyKeras):
        pass

    made = [tf_keras.callbacks.CallbackList([kind()])._check_timing for kind in (Ours, private_keras.untimed(Ours))]
    assert made == [True, False]
    assert isinstance(private_keras.untimed(Ours)(), Ours)


def test_batch_hooks_are_asked_for():
    class Hooked(private_keras.AnyKeras):
        def on_train_batch_end(self, batch, logs=None):
            pass

    callbacks = tf_keras.callbacks.CallbackList([Hooked()], model=tf_keras.Sequential())
    assert callbacks._should_call_train_batch_hooks and not callbacks._should_call_test_batch_hooks
