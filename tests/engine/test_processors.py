"""Each processor does to scores what Hugging Face's does, row by row."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from transformers.generation import logits_process as reference

from keras_xla.config import GenerationOptions
from keras_xla.engine.search.processors import PROCESSORS, Context, eos_mask, process
from keras_xla.engine.search.samplers import OFF

VOCAB, PROMPT, NEW, EOS = 12, 6, 5, (2, 3)


def ours(scores, prompts, made, options):
    """Scores after all that `options` switch on; `prompts` and `made` are lists of lists, all `made` of a length."""
    tokens = np.full((len(prompts), PROMPT + NEW), 5, "int32")  # what was not generated must not count
    for i, (prompt, generated) in enumerate(zip(prompts, made, strict=True)):
        tokens[i, PROMPT - len(prompt) : PROMPT + len(generated)] = (*prompt, *generated)
    starts = np.array([PROMPT - len(prompt) for prompt in prompts], "int32")
    numbers = (options.max_new_tokens, options.min_new_tokens, options.min_length)
    is_eos = eos_mask(ops.convert_to_tensor(options.eos_token_id, "int32"), VOCAB)
    arrays = map(ops.convert_to_tensor, (tokens, starts, np.int32(PROMPT), np.int32(len(made[0]))))
    context = Context(*arrays, is_eos, *(ops.convert_to_tensor(n, "int32") for n in numbers))
    active = np.array([processor.wanted(options) for processor in PROCESSORS.values()])
    extras = {}
    for processor in PROCESSORS.values():
        extras |= dict(zip(processor.names, processor.tensors(options, VOCAB), strict=True))
    extras = {name: ops.convert_to_tensor(value) for name, value in extras.items()}
    arguments = ops.convert_to_tensor(scores), context, ops.convert_to_tensor(active), extras, PROCESSORS
    return ops.convert_to_numpy(process(*arguments))


def theirs(scores, prompts, made, options):
    """The same by transformers, each row alone."""
    rows = []
    for row, prompt, tokens in zip(scores, prompts, made, strict=True):
        o, chain = options, reference.LogitsProcessorList()
        if o.repetition_penalty != 1:
            chain.append(reference.RepetitionPenaltyLogitsProcessor(o.repetition_penalty))
        if o.no_repeat_ngram_size:
            chain.append(reference.NoRepeatNGramLogitsProcessor(o.no_repeat_ngram_size))
        if o.bad_words_ids:
            words = [list(word) for word in o.bad_words_ids]
            chain.append(reference.NoBadWordsLogitsProcessor(words, list(o.eos_token_id)))
        chain.append(reference.MinLengthLogitsProcessor(o.min_length, list(o.eos_token_id)))
        least = reference.MinNewTokensLengthLogitsProcessor(len(prompt), o.min_new_tokens, list(o.eos_token_id))
        chain.append(least)
        if o.forced_bos_token_id is not None:
            chain.append(reference.ForcedBOSTokenLogitsProcessor(o.forced_bos_token_id))
        if o.forced_eos_token_id:
            length = len(prompt) + o.max_new_tokens
            chain.append(reference.ForcedEOSTokenLogitsProcessor(length, list(o.forced_eos_token_id)))
        if o.suppress_tokens:
            chain.append(reference.SuppressTokensLogitsProcessor(o.suppress_tokens))
        if o.begin_suppress_tokens:
            first = len(prompt) + (len(prompt) == 1 and o.forced_bos_token_id is not None)
            chain.append(reference.SuppressTokensAtBeginLogitsProcessor(o.begin_suppress_tokens, first))
        ids = torch.tensor([[*prompt, *tokens]])
        rows.append(chain(ids, torch.tensor(row[None]))[0].numpy())
    return np.maximum(np.stack(rows), OFF)


token = st.integers(0, 5)  # few, so that they repeat
words = st.lists(st.lists(token, min_size=1, max_size=4).map(tuple), max_size=6, unique=True).map(tuple)
options = st.builds(
    GenerationOptions,
    max_new_tokens=st.just(NEW),
    eos_token_id=st.sampled_from([(2,), EOS]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    no_repeat_ngram_size=st.integers(0, 4),
    bad_words_ids=words,
    min_length=st.integers(0, 8),
    min_new_tokens=st.integers(0, 4),
    forced_bos_token_id=st.none() | token,
    forced_eos_token_id=st.sampled_from([(), (3,), EOS]),
    suppress_tokens=st.lists(token, max_size=3),
    begin_suppress_tokens=st.lists(token, max_size=3),
)


@pytest.mark.skipif(
    transformers.__version__.startswith("4."),
    reason="transformers 4 overlooks a bad word of one token more than the text so far",
)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), options=options, seed=st.integers(0, 2**31), step=st.integers(0, NEW - 1))
def test_any_combination_equals_the_reference(data, options, seed, step):
    lengths = data.draw(st.lists(st.integers(1, PROMPT), min_size=1, max_size=3))
    prompts = [data.draw(st.lists(token, min_size=n, max_size=n)) for n in lengths]
    made = [data.draw(st.lists(token, min_size=step, max_size=step)) for _ in lengths]
    scores = np.random.default_rng(seed).normal(0, 2, (len(lengths), VOCAB)).astype("float32")
    np.testing.assert_allclose(ours(scores, prompts, made, options), theirs(scores, prompts, made, options), rtol=1e-6)


@pytest.mark.parametrize(("size", "forbidden"), [(1, {4, 5, 6}), (2, {5, 6}), (3, {6}), (4, set())])
def test_no_ngram_occurs_twice(size, forbidden):
    scores = np.zeros((1, VOCAB), "float32")
    out = ours(scores, [[4, 5, 4, 6]], [[5, 4]], GenerationOptions(no_repeat_ngram_size=size, max_new_tokens=NEW))
    assert set(np.flatnonzero(out[0] == OFF)) == forbidden


def test_a_word_longer_than_the_text_so_far_forbids_nothing():
    scores = np.zeros((1, VOCAB), "float32")
    out = ours(scores, [[4]], [[]], GenerationOptions(bad_words_ids=[[0, 0, 4, 7]], max_new_tokens=NEW))
    assert (out == 0).all()
