"""What a call of a compiled function leaves behind, beside its outputs: losses on layers, and the state of draws."""

import threading

import keras
import numpy as np
import pytest

from keras_xla import XLAUnsupportedError, jit

TENSORFLOW = keras.backend.backend() == "tensorflow"
ONES = np.ones((4, 3), "float32")


def regularized():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activity_regularizer="l2")])


class Adds(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x * 2


class Encoder(keras.Model):
    """A method of it has a layer that adds a loss."""

    def __init__(self):
        super().__init__()
        self.inner = Adds()

    def encode(self, x):
        return self.inner(x)


def losses_of(layer):
    return [float(loss) for loss in layer.losses]


@pytest.mark.parametrize("made", [regularized, Adds, lambda: keras.Sequential([Adds(), Adds()])])
def test_a_layer_has_the_losses_of_its_last_call(made):
    layer, batches = made(), [ONES, 3 * ONES, 2 * ONES]
    layer(ONES)
    fast = jit(layer)
    for batch in batches:
        layer(batch)
        expected = losses_of(layer)
        layer(batch * 7)  # whatever was called in between
        fast(batch)
        np.testing.assert_allclose(losses_of(layer), expected, rtol=1e-5)
    assert fast.trace_count == 1


def test_so_has_one_that_has_the_method_and_one_among_the_arguments():
    model = Encoder()
    encode, called = jit(model.encode), jit(lambda layer, x: layer.encode(x))
    for factor in (1, 2):
        encode(factor * ONES)
        assert losses_of(model) == [12.0 * factor]
        called(model, 5 * factor * ONES)
        assert losses_of(model) == [60.0 * factor]


def test_a_layer_that_is_called_twice_in_another_one_adds_twice():
    inner = Adds()
    fast = jit(inner)

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def call(self, x):
            return fast(x) + fast(x)

    outer = Outer()
    for _ in range(2):
        outer(keras.ops.convert_to_tensor(ONES))
        assert losses_of(outer) == [12.0, 12.0]


def test_buckets_leave_no_losses_of_other_sizes():
    class Large(Adds):
        def call(self, x):
            return super().call(x) if x.shape[0] >= 8 else x * 2

    for layer in (Adds(), Large()):
        fast = jit(layer, buckets={"x": {0: (8,)}})
        for _ in range(2):
            fast(ONES)
            assert losses_of(layer) == [12.0]


def test_a_call_that_adds_none_leaves_none_of_an_earlier_call():
    class InTraining(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                self.add_loss(keras.ops.sum(x))
            return x * 2

    layer, other = InTraining(), Adds()
    other(ONES)
    model = keras.Sequential([layer])
    as_argument = jit(lambda one, x, training: one(x, training=training))
    beside_another = jit(lambda one, two, x, training: one(x, training=training))
    calls = [
        jit(layer),
        lambda x, training: as_argument(layer, x, training),
        lambda x, training: beside_another(model, other, x, training),
    ]
    for call in calls:
        for training in (True, False, True, False):
            call(ONES, training=training)
            assert losses_of(layer) == [12.0] * training
    assert losses_of(other) == [12.0]  # it was an argument, but was not called


def test_what_is_added_in_a_loop_or_a_branch_stays_there():
    inner = Adds()

    class Branch(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def call(self, x):
            return keras.ops.cond(keras.ops.sum(x) > 0, lambda: self.inner(x), lambda: x)

    class Cell(keras.layers.SimpleRNNCell):
        def call(self, x, states, training=False):
            self.add_loss(keras.ops.sum(x))
            return super().call(x, states, training=training)

    fast = jit(Branch())
    for _ in range(2):
        np.testing.assert_array_equal(fast(ONES), 2 * ONES)
    assert inner.losses == []
    recurrent, series = keras.layers.RNN(Cell(4)), np.ones((2, 5, 3), "float32")
    expected = np.asarray(recurrent(series))
    np.testing.assert_allclose(jit(recurrent)(series), expected, rtol=1e-5)


@pytest.mark.skipif(not TENSORFLOW, reason="of TensorFlow's tape")
def test_gradients_go_through_these_losses():
    import tensorflow as tf

    model, x = regularized(), tf.constant(ONES)
    fast, found = jit(model), []
    for call in (model, fast):
        with tf.GradientTape() as tape:
            call(x)
            loss = sum(model.losses)
        found.append(tape.gradient(loss, model.trainable_variables[0]).numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.skipif(not TENSORFLOW, reason="on JAX, Keras refuses draws without a seed where something is compiled")
def test_draws_without_a_seed_begin_anew_with_set_random_seed():
    keras.utils.set_random_seed(3)
    fast = jit(lambda x: x + keras.random.normal((3,)))

    def drawn(call):
        keras.utils.set_random_seed(1)
        return [np.asarray(call(ONES)).tolist() for _ in range(2)]

    first = drawn(fast)
    assert first[0] != first[1] and drawn(fast) == first and fast.trace_count == 1
    plain = drawn(lambda x: x + keras.random.normal((3,)))  # other numbers: XLA has its own
    keras.utils.set_random_seed(1)  # both draw from one generator, whose state goes on from one to the other
    np.testing.assert_array_equal(fast(ONES), first[0])
    np.testing.assert_array_equal(ONES + keras.random.normal((3,)), plain[1])


@pytest.mark.skipif(not TENSORFLOW, reason="on JAX, Keras refuses draws without a seed where something is compiled")
def test_draws_in_another_thread_are_those_of_its_own_generator():
    keras.utils.set_random_seed(1)
    fast, other = jit(lambda x: x + keras.random.normal((3,))), []
    first = [np.asarray(fast(ONES)) for _ in range(3)]
    keras.utils.set_random_seed(1)
    again = [np.asarray(fast(ONES))]
    thread = threading.Thread(target=lambda: other.extend(np.asarray(fast(ONES)) for _ in range(2)))
    thread.start()
    thread.join()
    again += [np.asarray(fast(ONES)) for _ in range(2)]
    np.testing.assert_array_equal(again, first)
    assert not np.array_equal(*other) and not any(np.array_equal(other[0], each) for each in first)


@pytest.mark.skipif(not TENSORFLOW, reason="JAX has no lists of tensors")
def test_lists_that_grow_are_refused_as_xla_drops_what_is_behind_their_end():
    import tensorflow as tf

    def listed(x, size, dynamic):
        made = tf.TensorArray(tf.float32, size, dynamic_size=dynamic).write(0, x).write(1, 2 * x)
        return made.stack()

    for size in (0, 1, 2):
        grows = r"XLA cannot do the operation TensorList\w+ for a list that grows"
        with pytest.raises(XLAUnsupportedError, match=grows) as raised:
            jit(listed)(ONES, size, True)
        assert "dynamic_size=True" in str(raised.value) and __file__ in str(raised.value)
    np.testing.assert_array_equal(jit(listed)(ONES, 2, False), listed(ONES, 2, True))
