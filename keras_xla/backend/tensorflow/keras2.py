"""The steps of models of Keras 2 (tf_keras), as Hugging Face's TensorFlow classes are."""

from collections.abc import Callable

import tensorflow as tf

from keras_xla.private.tf_keras import count_step


def step_of(model, kind: str) -> Callable:
    """The train, test or predict step of a Keras 2 model, as a function of a batch."""
    # Keras 2 converts the `if`s and loops of a custom step into the graph's, Keras 3 does not.
    step = tf.function(getattr(model, f"{kind}_step"))

    def counted(data):
        outputs = step(data)
        count_step(model, kind)
        return outputs

    return counted
