"""The generator of Keras' random operations that get no seed."""

from typing import Any

from keras_xla.private.keras.call_context import GLOBAL
from keras_xla.private.names import KERAS_SEEN, Name, otherwise

GENERATOR = Name(
    "keras.src.random.seed_generator",
    "global_seed_generator",
    "the generator of random operations without a seed; `keras.utils.set_random_seed` lets go of it",
    "a function of keras_xla.jit that draws without a seed does not begin anew after `keras.utils.set_random_seed`",
    KERAS_SEEN,
)


@otherwise(None)
def global_generator(make: bool = False) -> Any:
    """That of now; None if there is none, unless it is to be made, as the next operation would."""
    if make:
        return GENERATOR.of_module()()
    return GLOBAL.of_module()("global_seed_generator")
