"""The generator of random operations that get no seed."""

import keras

from keras_xla.private.keras.seeds import global_generator


def test_set_random_seed_lets_go_of_it_and_the_next_draw_makes_another():
    keras.utils.set_random_seed(1)
    assert global_generator() is None
    keras.random.normal((2,))
    made = global_generator()
    assert made is global_generator(make=True)
    keras.utils.set_random_seed(1)
    assert global_generator(make=True) is not made is not None
