"""Observed step functions for models of Keras 2 (tf_keras), as Hugging Face's TensorFlow classes are."""

from collections.abc import Callable

import tensorflow as tf

from keras_xla.backend.tensorflow_steps import observed_step


class _AsKeras3:
    """What `observed_step` reads of a model, from one of Keras 2."""

    def __init__(self, model, kind: str):
        steps = getattr(model, "_steps_per_execution", None)
        self.steps_per_execution = 1 if steps is None else int(steps.numpy())
        self.distribute_strategy = model.distribute_strategy
        # Keras 2 converts the `if`s and loops of a custom step into the graph's, Keras 3 does not.
        step = tf.function(getattr(model, f"{kind}_step"))

        def counted(data):
            outputs = step(data)
            getattr(model, f"_{kind}_counter").assign_add(1)
            return outputs

        setattr(self, f"{kind}_step", counted)


def observed_keras2_step(
    model, kind: str, keras_make: Callable, own: bool, names: Callable, refuse: Callable, saw: Callable
) -> Callable:
    """The function that `fit`, `evaluate` or `predict` of a Keras 2 model calls with its iterator.

    Several steps an execution are Keras' own function, whose batches can only be seen as far as the dataset's
    specification tells their shapes.

    Args:
        model: A compiled model of Keras 2 with `jit_compile=True`.
        kind: `"train"`, `"test"` or `"predict"`.
        keras_make: As in `observed_step`, and so are the others.
        own: Whether the model's class builds a function of its own.
        names: Names the tensors of a batch.
        refuse: Called with blocking operations; raises.
        saw: Called with the batches of an execution.
    """
    view = _AsKeras3(model, kind)
    own = own or view.steps_per_execution > 1
    return observed_step(view, kind, keras_make, own, names, refuse, saw, from_iterator=True)
