"""Generation with weights in int8 or int4: the same model, rounded, wherever the weights come from and go to."""

import keras
import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.models.parameters import parameters
from tests import reference
from tests.tokenizers import tiny

IDS = np.array([[5, 6, 7, 8, 9], [10, 3, 4, 11, 12]], "int32")
SOURCES = {"t5": IDS, "bart": IDS}
QUICK = ("gpt2", "llama-tied-gqa", "opt-350m", "qwen2", "t5")


def logits(layer, variant):
    ids = keras.ops.convert_to_tensor(IDS)
    out = layer.model(source=ids, ids=ids) if variant in SOURCES else layer.model(ids)
    return keras.ops.convert_to_numpy(out)


@pytest.mark.quick("gpt2-int8-0.03", "t5-int8-0.03", "llama-tied-gqa-int4-0.3")
@pytest.mark.parametrize(("mode", "most"), [("int8", 0.03), ("int4", 0.3)])
@pytest.mark.parametrize("variant", [*QUICK, "bart"])
def test_logits_are_those_of_pytorch_up_to_what_is_rounded(checkpoint, variant, mode, most):
    layer = XLAGenerationLayer.from_pretrained(checkpoint(variant), quantization=mode)
    if variant in SOURCES:
        expected = np.stack([reference.seq2seq_logits(variant, IDS[i : i + 1], IDS[i : i + 1])[0] for i in range(2)])
    else:
        expected = reference.logits(variant, IDS)
    made = logits(layer, variant)
    assert most * expected.std() > np.abs(made - expected).std() > 1e-5 * expected.std()


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("llama-tied-gqa")


@pytest.fixture(scope="module", params=["int8", "int4"])
def layer(folder, request):
    return XLAGenerationLayer.from_pretrained(folder, tokenizer=tiny(), quantization=request.param)


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 8},
        {"max_new_tokens": 8, "num_beams": 3},
        {"max_new_tokens": 8, "do_sample": True, "seed": 3, "num_return_sequences": 2},
    ],
    ids=["greedy", "beams", "sampling"],
)
@pytest.mark.slow
def test_quantizing_a_layer_makes_what_loading_it_quantized_makes(folder, layer, options):
    other = XLAGenerationLayer.from_pretrained(folder)
    plain = other.generate(IDS, **options)
    other.quantize(layer.model.quantization)
    expected, made = layer.generate(IDS, **options), other.generate(IDS, **options)
    np.testing.assert_array_equal(made["sequences"], expected["sequences"])
    np.testing.assert_array_equal(made["scores"], expected["scores"])
    assert (plain["scores"] != made["scores"]).any()
    assert {v.dtype for v in other.variables} == {"int8", "float32"}
    assert len(other.weights) == len(layer.weights)  # the floats are gone


@pytest.mark.slow
def test_a_batch_of_one_and_rows_beside_others_make_the_same_tokens(layer):
    whole = layer.generate(IDS, max_new_tokens=8)
    for row in range(2):
        alone = layer.generate(IDS[row : row + 1], max_new_tokens=8)
        np.testing.assert_array_equal(alone["sequences"][0], whole["sequences"][row])
        np.testing.assert_allclose(alone["scores"][0], whole["scores"][row], rtol=1e-4)


@pytest.mark.slow
def test_a_long_prompt_computed_in_chunks_or_after_another_makes_the_same_tokens(layer):
    prompt = np.random.default_rng(0).integers(4, 90, 100).astype("int32")
    expected = layer.generate([prompt], max_new_tokens=6)
    layer.generate([prompt[:40]], max_new_tokens=1, reuse_prompt=True)
    made = layer.generate([prompt], max_new_tokens=6, reuse_prompt=True)
    np.testing.assert_array_equal(made["sequences"], expected["sequences"])
    np.testing.assert_allclose(made["scores"], expected["scores"], rtol=1e-4)


@pytest.mark.slow
def test_a_prompt_that_was_kept_before_is_not_reused_after_quantizing(folder, layer):
    other, prompt = XLAGenerationLayer.from_pretrained(folder), np.arange(5, 35)
    cache = other._generator.prompt_cache()
    other.generate([prompt], max_new_tokens=1, reuse_prompt=cache)
    other.quantize(layer.model.quantization)
    expected = layer.generate([prompt], max_new_tokens=6)["scores"]
    for _ in range(2):  # and what is kept from then on is
        made = other.generate([prompt], max_new_tokens=6, reuse_prompt=cache)["scores"]
        np.testing.assert_allclose(made, expected, rtol=1e-5)


def test_what_was_frozen_stays_frozen_and_the_dtype_stays(folder):
    layer = XLAGenerationLayer.from_pretrained(folder, dtype="bfloat16")
    layer.model.blocks[0].trainable = False
    before = len(layer.trainable_variables)
    layer.quantize("int8")
    assert not layer.model.blocks[0].trainable_variables and layer.model.blocks[1].trainable_variables
    assert 0 < len(layer.trainable_variables) < before
    again = XLAGenerationLayer.from_config(layer.get_config())
    assert again.model.compute_dtype == "bfloat16" and again.model.quantization == "int8"


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
@pytest.mark.quick("mixed_float16")
def test_what_computes_in_float16_is_quantized_as_while_it_is_loaded(folder, dtype):
    """Keras refuses that for its own layers."""
    layer = XLAGenerationLayer.from_pretrained(folder, dtype=dtype)
    layer.quantize("int8")
    expected = XLAGenerationLayer.from_pretrained(folder, dtype=dtype, quantization="int8")
    assert [v.dtype for v in layer.variables] == [v.dtype for v in expected.variables]
    made, wanted = logits(layer, "llama-tied-gqa"), logits(expected, "llama-tied-gqa")
    np.testing.assert_allclose(made, wanted, atol=0.03 * wanted.std())  # of weights that were rounded to float16 before
    assert layer.generate(IDS, max_new_tokens=4)["sequences"].shape == (2, 4)


def test_a_configuration_of_another_mode_is_refused_with_its_mode(folder):
    class Config:
        """As Keras' for GPTQ, which cannot be made without arguments."""

        mode = "gptq"

        def __init__(self, dataset):
            pass

    layer = XLAGenerationLayer.from_pretrained(folder)
    with pytest.raises(ValueError, match="Received quantization='gptq'; expected 'int8', 'int4', or None"):
        type(layer).quantize(layer, "gptq", config=Config([]))


def test_keras_quantizes_the_other_layers_of_a_model(folder):
    inputs = keras.Input((None,), dtype="int32")
    hidden = keras.layers.GRU(8, return_sequences=True)(keras.layers.Embedding(20, 8)(inputs))
    layer = XLAGenerationLayer(keras.Model(inputs, keras.layers.Dense(20)(hidden)))
    with pytest.raises(NotImplementedError, match="computes its products itself"):
        layer.quantize("int8")


@pytest.mark.slow
def test_it_is_saved_as_it_is_and_loads_as_such(layer, tmp_path):
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.layers[-1].model.quantization == layer.model.quantization
    for old, new in zip(layer.variables, again.layers[-1].variables, strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(old), keras.ops.convert_to_numpy(new))
    np.testing.assert_array_equal(
        again.predict(IDS, verbose=0)["sequences"], model.predict(IDS, verbose=0)["sequences"]
    )


def test_of_all_matrices_none_stays_in_floats(layer):
    found = parameters(layer.model)
    kinds = {name: getattr(x, "quantization", x.name) for name, x in found.items()}
    assert set(kinds.values()) == {layer.model.quantization, "int8", "scale"}
    assert {name for name, kind in kinds.items() if kind == "int8"} >= {"embedding"}


def test_a_head_of_its_own_stays_in_int8(checkpoint):
    model = XLAGenerationLayer.from_pretrained(checkpoint("llama2"), quantization="int4").model
    assert model.head.quantization == model.embedding.quantization == "int8"


def test_what_cannot_be_quantized_says_so(folder, layer):
    with pytest.raises(ValueError, match="Received quantization='int3'; expected 'int8', 'int4', or None"):
        XLAGenerationLayer.from_pretrained(folder, quantization="int3")
    with pytest.raises(ValueError, match="Received quantization='float8'; expected 'int8', 'int4', or None"):
        XLAGenerationLayer.from_pretrained(folder).quantize("float8")
    with pytest.raises(ValueError, match=r"quantized \(int[48]\) already"):
        layer.quantize("int8")
    inputs = keras.Input((None,), dtype="int32")
    hidden = keras.layers.GRU(8, return_sequences=True)(keras.layers.Embedding(20, 8)(inputs))
    other = keras.Model(inputs, keras.layers.Dense(20)(hidden))
    with pytest.raises(NotImplementedError, match="computes its products itself"):
        XLAGenerationLayer(other, quantization="int8")


@pytest.mark.slow
def test_the_compilation_is_one_and_quantizing_makes_it_anew(folder):
    layer = XLAGenerationLayer.from_pretrained(folder)
    layer.generate(IDS, max_new_tokens=4)
    before = layer.trace_count
    layer.quantize("int8")
    assert layer.trace_count == 0
    layer.generate(IDS, max_new_tokens=4)
    layer.generate(IDS, max_new_tokens=9, do_sample=True)
    assert layer.trace_count == before
