"""Beam search gives PyTorch transformers' tokens, scores and order, whatever the options."""

import numpy as np
import pytest
import torch

from keras_xla import XLAGenerationLayer
from tests import reference
from tests.engine.fake import Fixed

PROMPTS = [[5], [7, 11, 13, 17, 19], [3, 4, 5, 6, 7, 8, 9, 10, 11], [90, 80, 70]]
EOS = (2, 9, 50)  # several, so that beams end early in a random model
LENGTHS = dict(max_new_tokens=14)
OPTIONS = [
    dict(num_beams=2),
    dict(num_beams=4, num_return_sequences=4),
    dict(num_beams=4, num_return_sequences=2, length_penalty=0.0),
    dict(num_beams=4, length_penalty=2.0, early_stopping="never"),
    dict(num_beams=4, length_penalty=-1.0, early_stopping="never", num_return_sequences=4),
    dict(num_beams=4, early_stopping=True, num_return_sequences=4),
    dict(num_beams=4, min_new_tokens=6),
    dict(num_beams=4, max_new_tokens=3, num_return_sequences=3),
]
PROCESSED = [
    dict(repetition_penalty=1.4, no_repeat_ngram_size=2, bad_words_ids=[[4], [7, 8]]),
    dict(suppress_tokens=[6, 7, 60], begin_suppress_tokens=[12], forced_eos_token_id=2, min_length=9),
]


def beams(variant, prompt, **options):
    """The reference's new tokens of each returned beam, up to its end, and their scores."""
    model, ids = reference.torch_model(variant), torch.tensor([prompt])
    how = dict(do_sample=False, pad_token_id=0, return_dict_in_generate=True, output_scores=True)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **{**how, **options})
    ends = options["eos_token_id"]
    rows = out.sequences[:, len(prompt) :].tolist()
    lengths = [next((i + 1 for i, t in enumerate(row) if t in ends), len(row)) for row in rows]
    return [row[:n] for row, n in zip(rows, lengths, strict=True)], out.sequences_scores


def compare(layer, variant, prompts, options):
    """Tokens and scores of a batch against the reference's, each prompt alone."""
    options = {**LENGTHS, **options}
    out = layer.generate(prompts, **options)
    count = options.get("num_return_sequences", 1)
    expected = [beams(variant, p, eos_token_id=list(EOS), **options) for p in prompts]
    for i, (rows, scores) in enumerate(expected):
        for j in range(count):
            at = i * count + j
            assert out["sequences"][at, : out["lengths"][at]].tolist() == rows[j], (options, i, j)
        np.testing.assert_allclose(out["scores"][i * count : (i + 1) * count], scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["gpt2", "opt-350m", "llama-tied-gqa", "mistral"])
@pytest.mark.slow
def test_tokens_scores_and_order_equal_the_references(variant, checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint(variant), eos_token_id=EOS, pad_token_id=0)
    for options in OPTIONS:
        compare(layer, variant, PROMPTS, options)
    assert layer.trace_count == 3  # the prompts; 2 beams, and 4: everything else is a tensor


@pytest.mark.parametrize("options", PROCESSED)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.quick_on_jax
@pytest.mark.quick("3-options0", "1-options1")
def test_processors_in_greedy_and_beam_search_equal_the_references(beams, options, checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), eos_token_id=EOS, pad_token_id=0)
    if beams > 1:
        compare(layer, "gpt2", PROMPTS, {"num_beams": beams, **options})
    else:
        out = layer.generate(PROMPTS, **LENGTHS, **options)
        for i, prompt in enumerate(PROMPTS):
            expected = reference.generate("gpt2", prompt, eos_token_id=list(EOS), **LENGTHS, **options)
            assert out["sequences"][i, : out["lengths"][i]].tolist() == expected
    assert layer.trace_count == 2  # the prompts, and the tokens


@pytest.mark.slow
def test_models_that_run_one_token_a_row_find_the_same_beams(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), eos_token_id=EOS, pad_token_id=0)

    class OneToken:
        vocab_size, max_positions, variables = (
            layer.model.vocab_size,
            layer.model.max_positions,
            layer.model.variables,
        )
        prefill, step = layer.model.prefill, layer.model.step

    other = XLAGenerationLayer(OneToken(), eos_token_id=EOS, pad_token_id=0)
    for options in ({**LENGTHS, **OPTIONS[1]}, {**LENGTHS, **OPTIONS[5]}, dict(num_beams=4, max_new_tokens=64)):
        ours, theirs = (x.generate(PROMPTS, **options) for x in (layer, other))
        np.testing.assert_array_equal(ours["sequences"], theirs["sequences"])
        np.testing.assert_allclose(ours["scores"], theirs["scores"], rtol=1e-5)


@pytest.mark.slow
def test_beam_sampling_draws_from_the_references_distribution(checkpoint):
    """The first token of the best of 2 beams, over many seeds, against torch's own draws."""
    options = dict(num_beams=2, do_sample=True, top_k=4, temperature=1.3, max_new_tokens=2)
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), eos_token_id=None, pad_token_id=0)
    count, batch = 1024, 64
    made = [layer.generate([PROMPTS[1]] * batch, seed=s, **options)["sequences"] for s in range(count // batch)]
    torch.manual_seed(0)
    how = dict(pad_token_id=0, eos_token_id=None, attention_mask=torch.ones((count, len(PROMPTS[1])), dtype=int))
    with torch.no_grad():
        drawn = reference.torch_model("gpt2").generate(torch.tensor([PROMPTS[1]] * count), **how, **options)
    drawn = drawn[:, len(PROMPTS[1]) :].numpy()
    pairs, ours = np.unique(np.concatenate(made), axis=0, return_counts=True)
    theirs = np.array([(drawn == pair).all(axis=1).sum() for pair in pairs])
    assert theirs.sum() == count  # nothing drawn there that cannot be drawn here
    assert np.abs(ours - theirs).max() < 5 * np.sqrt(2 * count * 0.25)
    assert 0.5 * np.abs(ours - theirs).sum() / count < 0.12
    assert layer.trace_count == 2


@pytest.mark.slow
def test_a_seed_repeats_beam_samples(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), eos_token_id=EOS, pad_token_id=0)
    options = dict(num_beams=3, do_sample=True, seed=5, num_return_sequences=2, **LENGTHS)
    one, two = layer.generate(PROMPTS, **options), layer.generate(PROMPTS, **options)
    np.testing.assert_array_equal(one["sequences"], two["sequences"])
    other = layer.generate(PROMPTS, **{**options, "seed": 6})
    assert (one["sequences"] != other["sequences"]).any()
    alone = layer.generate(PROMPTS[:1], **options)
    np.testing.assert_array_equal(alone["sequences"], one["sequences"][:2])


@pytest.mark.quick_on_jax
def test_what_passes_the_check_fits_into_the_largest_cache(checkpoint):
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), cache_buckets=[32])
    rows, options = [[5] * 23], dict(num_beams=2, max_new_tokens=5)  # 23 and 2 x 5 - 1 slots
    layer.check(rows, **options)
    assert layer.generate(rows, **options)["lengths"].tolist() == [5]
    with pytest.raises(ValueError, match="a cache of 33"):
        layer.generate([[5] * 24], **options)


def test_a_search_whose_last_beams_may_make_no_token_returns_those_that_have_ended(checkpoint):
    others = [token for token in range(reference.VOCAB) if token not in (2, 7)]
    options = dict(num_beams=2, early_stopping="never", no_repeat_ngram_size=1, eos_token_id=[2], max_new_tokens=8)
    options |= dict(begin_suppress_tokens=[2], suppress_tokens=others)
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), tokenizer=None, pad_token_id=0, generation_config={})
    out = layer.generate([[5]], **options)
    assert out["sequences"][0, : out["lengths"][0]].tolist() == beams("gpt2", [5], **options)[0][0] == [7, 2]


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.quick("True")
def test_no_beam_makes_what_all_options_forbid(renormalize, checkpoint):
    """A beam that has made 7 may make nothing; the other one, which has made 9, may not either."""
    allowed = [token for token in range(reference.VOCAB) if token not in (7, 9)]
    options = dict(num_beams=2, no_repeat_ngram_size=1, max_new_tokens=8, suppress_tokens=allowed)
    layer = XLAGenerationLayer.from_pretrained(checkpoint("gpt2"), tokenizer=None, pad_token_id=0, generation_config={})
    with pytest.raises(ValueError, match="the options forbid every token"):
        layer.generate([[5]], renormalize_logits=renormalize, **options)


@pytest.mark.slow
def test_a_vocabulary_that_is_smaller_than_what_beams_could_choose_from():
    layer = XLAGenerationLayer(Fixed(np.log([0.1, 0.2, 0.3, 0.4])), max_new_tokens=2, pad_token_id=0)
    out = layer.generate([[1]], num_beams=2, num_return_sequences=2)
    assert out["sequences"][:, 0].tolist() == [3, 3] and sorted(out["sequences"][:, 1].tolist()) == [2, 3]


@pytest.mark.slow
def test_beam_samples_with_several_ends_draw_no_more_than_the_reference():
    """Four times two of ten tokens of nearly equal chances: one that is as good as any other may be missing."""
    layer = XLAGenerationLayer(Fixed(np.linspace(0.1, 0, 10)), max_new_tokens=2, eos_token_id=[7, 8, 9], pad_token_id=0)
    options = dict(num_beams=2, do_sample=True, top_k=0)
    first = [int(layer.generate([[5]], seed=seed, **options)["sequences"][0, 0]) for seed in range(60)]
    assert {2, 3} & set(first)
