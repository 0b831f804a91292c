"""What keras_xla uses of JAX without a promise."""

import keras
import pytest

if keras.backend.backend() != "jax":
    pytest.skip("of the JAX backend", allow_module_level=True)
import jax
import jax.numpy as jnp

from keras_xla.private import jax as private
from keras_xla.private import names


def test_compilations_are_told_by_the_name_of_the_function():
    heard = []

    def fresh(x):
        return x + 1

    with private.listening(heard.append):
        jax.jit(fresh)(1.0)
    jax.jit(lambda x: x)(1.0)
    assert [name for name in heard if "fresh" in name] and not [name for name in heard if "lambda" in name]


def test_one_warning_where_jax_tells_nothing(monkeypatch):
    monkeypatch.setattr(names, "_TOLD", set())
    monkeypatch.setattr(private._THREAD, "listener", None, raising=False)
    private._heard.cache_clear()
    monkeypatch.setattr(private, "_on_event", None)
    monkeypatch.setattr(private, "COMPILED", names.Name("jax.monitoring", "/gone", "", "reports are empty", "JAX 0"))
    with pytest.warns(UserWarning, match="jax.monitoring./gone"), private.listening(lambda name: None):
        pass
    private._heard.cache_clear()


def test_types_that_python_gives_are_weak():
    assert jnp.asarray(1.0).weak_type and not jnp.asarray(1.0, jnp.float32).weak_type
