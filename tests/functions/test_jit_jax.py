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
    for x in (np.float32(1), jax.numpy.float32(2), jax.numpy.asarray(3.0)):
        fast(x)
    assert compiled.count("jit(compiled)") == fast.trace_count == 1
