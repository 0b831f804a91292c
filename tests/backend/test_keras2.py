"""Models of Keras 2 where there is no TensorFlow backend; tests/transformers4 is about where there is."""

import sys
import types

import keras
import pytest

import keras_xla

pytestmark = pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="there, such models are compiled")


@pytest.fixture
def model(monkeypatch):
    """Looks like a TensorFlow model of Hugging Face, as far as is looked at."""
    base = type("Model", (), {"__module__": "tf_keras.src.engine.training"})

    def generate(self):
        return 0

    mixin = type("TFGenerationMixin", (), {"__module__": "transformers.generation.tf_utils", "generate": generate})
    monkeypatch.setitem(sys.modules, "tf_keras", types.SimpleNamespace(Model=base))
    return type("TFGPT2LMHeadModel", (base, mixin), {})()


def test_the_backend_that_they_need_is_named(model):
    for function in (keras_xla.compile, keras_xla.explain):
        with pytest.raises(ValueError, match=r"tf_keras model, which is TensorFlow's.*KERAS_BACKEND=tensorflow"):
            function(model)
    with pytest.raises(ValueError, match=r"`generate` of a TensorFlow model.*KERAS_BACKEND=tensorflow"):
        keras_xla.jit(model.generate)
