"""Whatever dtype Keras computes in, a layer may be called, generate and predict, in any order."""

import keras
import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint

IDS = np.array([[5, 6, 7], [8, 9, 10]])


def switched(setting, other):
    """A fixture that gives one of Keras' settings another value for a test."""

    @pytest.fixture
    def switch():
        before = getattr(keras.config, setting)()
        getattr(keras.config, f"set_{setting}")(other)
        yield
        getattr(keras.config, f"set_{setting}")(before)

    return switch


float64, bfloat16 = switched("floatx", "float64"), switched("dtype_policy", "mixed_bfloat16")


def layer_of(checkpoint, **options):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    return XLAGenerationLayer(model, max_new_tokens=5, generation_config={}, **options)


@pytest.mark.slow
def test_a_call_and_generate_share_executables_in_mixed_precision(checkpoint, bfloat16):
    layer = layer_of(checkpoint)
    made = layer.generate(IDS)["sequences"].tolist()
    before = layer.trace_count
    assert keras.ops.convert_to_numpy(layer(IDS)["sequences"]).tolist() == made
    inputs = keras.Input((3,), dtype="int32")
    pipeline = keras.Model(inputs, layer(inputs))
    assert pipeline.predict(IDS, verbose=0)["sequences"].tolist() == made
    assert layer.generate(IDS)["sequences"].tolist() == made
    assert layer.trace_count == before


@pytest.mark.quick_on_jax
@pytest.mark.parametrize(
    "options",
    [{}, dict(num_beams=2), dict(do_sample=True, seed=1, top_p=0.9), dict(prompt_lookup_num_tokens=3)],
    ids=str,
)
@pytest.mark.quick("{'do_sample': True, 'seed': 1, 'top_p': 0.9}", "lookup")
def test_where_floats_are_float64(checkpoint, float64, options):
    out = layer_of(checkpoint).generate(IDS, forced_eos_token_id=3, **options)
    assert out["sequences"].shape == (2, 5) and out["scores"].dtype == np.float32
    assert np.isfinite(out["scores"]).all() and (out["sequences"][:, -1] == 3).all()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow always has float64")
def test_jax_without_float64_computes_nothing_as_if_it_had(checkpoint):
    with pytest.raises(ValueError, match=r"dtype='float64', or .* while JAX has no float64.*jax_enable_x64"):
        XLAGenerationLayer.from_pretrained(checkpoint("llama-tied-gqa"), dtype="float64")
