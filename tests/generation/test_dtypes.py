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


@pytest.fixture
def x64():
    """JAX with numbers of 64 bits, for the whole process: compilations run in threads of their own."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow always has numbers of 64 bits")
@pytest.mark.parametrize("variant", ["llama-tied-gqa", "gpt2", "t5-gated"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(do_sample=True, seed=1, top_k=9, top_p=0.9),
        dict(num_beams=3),
        dict(num_beams=2, do_sample=True, seed=1),
        dict(prompt_lookup_num_tokens=3),
        dict(repetition_penalty=1.2, no_repeat_ngram_size=2, bad_words_ids=[[7]], min_new_tokens=3),
    ],
    ids=["greedy", "draws", "beams", "beams of draws", "guesses", "processors"],
)
@pytest.mark.quick("greedy-llama", "draws-gpt2", "beams-t5", "guesses-llama")
def test_numbers_of_64_bits_in_jax_change_no_token(checkpoint, x64, variant, options):
    import jax

    made = {}
    for dtype in ("float64", "float32"):
        layer = XLAGenerationLayer.from_pretrained(checkpoint(variant), max_new_tokens=5, dtype=dtype)
        made[dtype] = layer.generate(IDS, **options)["sequences"].tolist()
    with jax.enable_x64(False):
        layer = XLAGenerationLayer.from_pretrained(checkpoint(variant), max_new_tokens=5)
        made["without"] = layer.generate(IDS, **options)["sequences"].tolist()
    assert made["float64"] == made["float32"] == made["without"]


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("shape", [(8,), (None,)])
@pytest.mark.quick("shape1-int8")
def test_a_quantized_model_may_be_a_part_of_a_functional_one(checkpoint, mode, shape):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("llama-tied-gqa"), quantization=mode)
    inputs = keras.Input(shape, dtype="int32")
    ids = np.arange(16).reshape(2, 8) + 3
    logits = keras.Model(inputs, layer.model(inputs)).predict(ids, verbose=0)
    np.testing.assert_allclose(logits, keras.ops.convert_to_numpy(layer.model(ids)), atol=1e-3)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="on TensorFlow nobody gives weights away")
def test_a_stream_whose_weights_keras_has_given_away_says_so(checkpoint):
    layer = layer_of(checkpoint)
    inputs = keras.Input((8,), dtype="int32")
    model = keras.Model(inputs, layer.model(inputs))
    stream = layer.stream(IDS[:1], max_new_tokens=60, eos_token_id=None)
    next(stream)
    model.predict(np.ones((2, 8), "int32"), verbose=0)
    with pytest.raises(RuntimeError, match="weights with which a stream began are gone: on JAX, fit, evaluate and"):
        list(stream)
    assert layer.generate(IDS)["sequences"].shape == (2, 5)
