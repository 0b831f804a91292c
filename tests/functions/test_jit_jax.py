"""keras_xla.jit on JAX: a proof from jax itself that nothing compiles beside what is counted."""

import keras
import numpy as np
import pytest

from keras_xla.functions.jit import jit

if keras.backend.backend() != "jax":
    pytest.skip("jax counts its compilations", allow_module_level=True)
import jax

COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _seconds, **details: (
        event.endswith("backend_compile_duration") and COMPILED.append(details["fun_name"])
    )
)


@pytest.fixture(autouse=True)
def compiled():
    COMPILED.clear()
    return COMPILED


def test_padding_and_cutting_compile_nothing(compiled):
    fast = jit(lambda x: x * 2, buckets={"x": {0: "pow2"}})
    for size in range(1, 10):
        assert fast(np.ones((size, 3), "float32")).shape == (size, 3)
    assert len(compiled) == fast.trace_count == 5


def test_a_variable_made_of_a_python_number_compiles_once(compiled):
    total = keras.Variable(1.0)

    @jit
    def add(x):
        total.assign_add(keras.ops.sum(x))

    for _ in range(3):
        add(np.ones(2, "float32"))
    assert float(total.value) == 7.0
    assert compiled.count("jit(compiled)") == add.trace_count == 1


def test_keys_of_jax_may_change_as_arrays_may():
    draw = jit(lambda key: jax.random.uniform(key, (3,)))
    for key in map(jax.random.key, (0, 1)):
        np.testing.assert_allclose(draw(key), jax.random.uniform(key, (3,)), rtol=1e-6)
    assert draw.trace_count == 1


def test_dtypes_that_keras_does_not_know():
    double = jit(lambda x: x.astype("int32") * 2)
    assert double(jax.numpy.asarray([1, -2], jax.numpy.int4)).tolist() == [2, -4]


def test_values_computed_by_jax_use_the_same_executable(compiled):
    fast = jit(lambda x: x + 1)
    for x in (np.float32(1), jax.numpy.float32(2), jax.numpy.asarray(3.0, "float32")):
        fast(x)
    assert compiled.count("jit(compiled)") == fast.trace_count == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes_that_give_way_to_others_do_so_inside(dtype):
    """As in `jax.jit`, such an argument needs an executable of its own."""
    x, fast = jax.numpy.ones(3, dtype), jit(lambda x, scale: x * scale)
    for scale in (jax.numpy.asarray(0.5), jax.numpy.where(x[0] > 0, 1.0, 2.0), jax.numpy.asarray(0.5, "float32")):
        for _ in range(2):
            assert fast(x, scale).dtype == (x * scale).dtype
    assert fast.trace_count == 2


def test_dtypes_that_give_way_do_so_with_buckets_too():
    half, fast = jax.numpy.ones((1,), "float16"), jit(lambda x, half: x * half, buckets={"x": {0: (4,)}})
    for size in (3, 4):
        assert (
            fast(jax.numpy.full((size,), 1.0), half).dtype == (jax.numpy.full((size,), 1.0) * half).dtype == "float16"
        )


def test_gradients_are_compiled_where_jit_is_outside(compiled):
    fast = jit(jax.grad(lambda x: jax.numpy.sum(jax.numpy.tanh(x))))
    for _ in range(2):
        np.testing.assert_allclose(fast(np.zeros(3, "float32")), np.ones(3), rtol=1e-6)
    assert compiled.count("jit(compiled)") == fast.trace_count == 1


def test_transformations_of_jax_get_their_arguments_as_they_were_given():
    columns = jax.vmap(lambda column: column.sum(), in_axes=1)
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.asarray(jit(columns)(x)).tolist() == [3.0, 5.0, 7.0]
    scaled = jax.vmap(lambda row, factor: row * factor, in_axes=(0, None))
    assert np.asarray(jit(scaled)(x, np.float32(2))).tolist() == (2 * x).tolist()
    gradient = jax.grad(lambda w, x: (w * x).sum())
    assert np.asarray(jit(gradient)(np.ones(3, "float32"), x[1])).tolist() == x[1].tolist()


@pytest.mark.parametrize("policy", ["mixed_float16", "float32"])
def test_weights_are_read_as_plain_keras_reads_them_inside_of_a_layer_of_another_dtype(policy):
    near = keras.initializers.Constant(1 + 2.0**-20)  # in float16 it is 1
    inner = keras.layers.Dense(1, use_bias=False, kernel_initializer=near, dtype=policy)
    inner.build((None, 1))

    class Around(keras.layers.Layer):
        def __init__(self, fn, **options):
            super().__init__(**options)
            self.fn = fn

        def call(self, x):
            return self.fn(x)

    fast, x = jit(inner), np.ones((1, 1), "float32")
    for dtype in ("mixed_float16", "float32", "mixed_float16"):
        expected, made = (Around(fn, dtype=dtype)(x) for fn in (inner, fast))
        assert made.dtype == expected.dtype and float(made[0, 0]) == float(expected[0, 0])
