"""Every family and variant gives PyTorch transformers' logits and tokens."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import FAMILIES, load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference
from tests.models import trees

PROMPTS = [[5], [7, 11, 13, 17, 19], [3, 4, 5, 6, 7, 8, 9, 10, 11], list(range(20, 36)), [90, 80, 70]]


def test_every_registered_family_has_a_variant_here():
    variants = [*reference.VARIANTS, *reference.SEQ2SEQ, *reference.SPEECH]
    assert {reference.torch_model(v).config.model_type for v in variants} == set(FAMILIES)


@pytest.mark.parametrize("variant", reference.VARIANTS)
@pytest.mark.quick_on_jax("llama-tied-gqa", "gpt2-untied-inverse-layer-scale")
def test_logits_equal_the_reference_at_every_step(variant, checkpoint):
    model = load_model(open_checkpoint(checkpoint(variant)))
    ids = np.random.default_rng(0).integers(3, reference.VOCAB, (2, 20)).astype("int32")
    expected = reference.logits(variant, ids)
    np.testing.assert_allclose(model(ids), expected, atol=1e-4)

    # Rows of 8 and 12 tokens, padded to 14 on the left, then 6 steps with the tokens that follow.
    lengths, prompt = np.array([8, 12]), 14
    starts = ops.convert_to_tensor((prompt - lengths).astype("int32"))
    padded = np.zeros((2, prompt), "int32")
    for i, n in enumerate(lengths):
        padded[i, prompt - n :] = ids[i, :n]
    logits, cache = model.prefill(ops.convert_to_tensor(padded), starts, prompt + 6)
    for step in range(7):
        at = lengths + step
        np.testing.assert_allclose(logits, expected[[0, 1], at - 1], atol=1e-4)
        if step < 6:
            tokens = ops.convert_to_tensor(ids[[0, 1], at])
            slot = ops.convert_to_tensor(prompt + step, "int32")
            logits, cache = model.step(tokens, slot, starts, cache)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="on JAX a model runs with known lengths",
)
@pytest.mark.parametrize("variant", ["gpt2", "llama-tied-gqa"])
def test_rows_of_a_length_that_nobody_knows_are_no_longer_than_the_reference_takes(variant, checkpoint):
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, load_model(open_checkpoint(checkpoint(variant)))(inputs))
    rows = np.random.default_rng(0).integers(3, reference.VOCAB, (2, 140)).astype("int32")
    for length in (20, 50, 128):
        expected = reference.logits(variant, rows[:, :length])
        np.testing.assert_allclose(model.predict_on_batch(rows[:, :length]), expected, atol=1e-4)
    if variant == "gpt2":  # a table of positions ends
        with pytest.raises(Exception, match=r"128 is not in \[0, 128\)"):
            model.predict_on_batch(rows)
    else:
        np.testing.assert_allclose(model.predict_on_batch(rows), reference.logits(variant, rows), atol=1e-4)


@pytest.mark.parametrize("variant", ["gpt2", "llama-tied-gqa", "mistral", "opt-350m"])
@pytest.mark.quick_on_jax
def test_a_tree_of_tokens_equals_each_path_alone(variant, checkpoint):
    model = load_model(open_checkpoint(checkpoint(variant)))
    made = trees.run(model, [[40, 41, 42], [50, 51, 52, 53, 54, 55]], reference.VOCAB)
    assert len(made) == 24
    for logits, _, path in made:
        np.testing.assert_allclose(logits, reference.logits(variant, np.array([path]))[0, -1], atol=1e-4)


@pytest.mark.parametrize("variant", reference.VARIANTS)
@pytest.mark.quick("gpt2-untied", "llama-tied")
@pytest.mark.quick_on_jax
def test_greedy_tokens_equal_the_reference_for_a_batch_of_mixed_lengths_on_both_padding_sides(variant, checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint(variant), eos_token_id=None, max_new_tokens=24)
    expected = [reference.generate(variant, prompt, max_new_tokens=24) for prompt in PROMPTS]
    assert layer.generate(PROMPTS)["sequences"].tolist() == expected
    width = max(map(len, PROMPTS))
    for side in ("left", "right"):
        ids = np.zeros((len(PROMPTS), width), "int64")
        mask = np.zeros_like(ids)
        for i, prompt in enumerate(PROMPTS):
            where = slice(width - len(prompt), None) if side == "left" else slice(len(prompt))
            ids[i, where], mask[i, where] = prompt, 1
        out = layer.generate({"input_ids": ids, "attention_mask": mask})
        assert out["sequences"].tolist() == expected, side
    assert layer.trace_count == 2  # a prompt's chunks, and the loop
