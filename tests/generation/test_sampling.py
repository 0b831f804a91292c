"""Draws after any processor and any filter have the distribution that PyTorch's `generate` draws from."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keras_xla import XLAGenerationLayer
from tests import examples, reference

VARIANT, DRAWS = "gpt2", 4096
PROMPT = [5, 6, 7, 5, 6, 9, 5]
PROCESSORS = {
    "none": {},
    "penalty": dict(repetition_penalty=1.6),
    "what is read": dict(encoder_repetition_penalty=0.6),
    "no repeated pairs": dict(no_repeat_ngram_size=2),
    "no pairs of the prompt": dict(encoder_no_repeat_ngram_size=2),
    "words": dict(bad_words_ids=[[7], [5, 6], [60]]),
    "biases": dict(sequence_bias={(11,): 1.5, (5, 12): 2.0}),
    "suppressed": dict(suppress_tokens=[8, 9], begin_suppress_tokens=[10]),
    "ends": dict(exponential_decay_length_penalty=(0, 1.4), eos_token_id=[20, 30], min_new_tokens=0),
    "no ends": dict(min_new_tokens=2, eos_token_id=[20, 30, 40], max_new_tokens=2),
    "guided": dict(guidance_scale=1.5),
    "normal": dict(renormalize_logits=True),
}
FILTERS = {
    "none": {},
    "temperature": dict(temperature=0.6),
    "top k": dict(top_k=7),
    "top p": dict(top_p=0.7),
    "min p": dict(min_p=0.2),
    "typical": dict(typical_p=0.6),
    "epsilon": dict(epsilon_cutoff=0.015),
    "eta": dict(eta_cutoff=0.02),
}


@pytest.fixture(scope="module")
def layer(checkpoint):
    return XLAGenerationLayer.from_pretrained(
        checkpoint(VARIANT), pad_token_id=0, batch_buckets=(DRAWS,), cache_buckets=(32,), top_k=0, do_sample=True
    )


def expected(options) -> np.ndarray:
    """The probabilities of the first token, `(vocabulary,)`."""
    how = {"max_new_tokens": 1, "eos_token_id": None, "top_k": 0, **options}
    ids = torch.tensor([PROMPT])
    torch.manual_seed(0)
    with torch.no_grad():
        made = reference.torch_model(VARIANT).generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=0,
            do_sample=True,
            output_scores=True,
            return_dict_in_generate=True,
            **how,
        )
    return torch.softmax(made.scores[0][0].double(), -1).numpy()


def surprise(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """How far off counts are: a number of standard deviations, by the cube root of chi-squared.

    Wilson and Hilferty, "The distribution of chi-square", 1931. Rare tokens count together.
    """
    wanted = probabilities * counts.sum()
    rare = wanted < 8
    groups = [(counts[~rare], wanted[~rare])]
    if wanted[rare].sum() >= 8:
        groups.append((counts[rare].sum(keepdims=True), wanted[rare].sum(keepdims=True)))
    counts, wanted = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    freedom = max(len(wanted) - 1, 1)
    share, spread = ((counts - wanted) ** 2 / wanted).sum() / freedom, 2 / (9 * freedom)
    return (np.cbrt(share) - (1 - spread)) / np.sqrt(spread)


@examples(60)
@given(
    st.lists(st.sampled_from(sorted(PROCESSORS)), min_size=1, max_size=2),
    st.lists(st.sampled_from(sorted(FILTERS)), min_size=1, max_size=2),
    st.integers(0, 2**31),
)
@pytest.mark.slow
def test_draws_have_the_references_distribution(layer, processors, filters, seed):
    options = {}
    for name in processors:
        options |= PROCESSORS[name]
    for name in filters:
        options |= FILTERS[name]
    probabilities = expected(options)
    how = {"max_new_tokens": 1, "eos_token_id": None, **options}
    drawn = layer.generate([PROMPT] * DRAWS, seed=seed, **how)["sequences"][:, 0]
    counts = np.bincount(drawn, minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    assert surprise(counts, probabilities) < 5
