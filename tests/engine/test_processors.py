"""Each processor does to scores what Hugging Face's does, row by row."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from transformers.generation import logits_process as reference

from keras_xla.config import GenerationOptions
from keras_xla.engine.search.processors import PROCESSORS, Context, eos_mask, process
from keras_xla.engine.search.samplers import FORBIDDEN
from tests import examples

VOCAB, PROMPT, NEW, EOS = 12, 6, 5, (2, 3)


def ours(scores, prompts, made, options, source=None, allowed=None):
    """Scores after all that `options` switch on; `prompts` and `made` are lists of lists, all `made` of a length."""
    tokens = np.full((len(prompts), PROMPT + NEW), 5, "int32")  # what was not generated must not count
    for i, (prompt, generated) in enumerate(zip(prompts, made, strict=True)):
        tokens[i, PROMPT - len(prompt) : PROMPT + len(generated)] = (*prompt, *generated)
    starts = np.array([PROMPT - len(prompt) for prompt in prompts], "int32")
    numbers = (options.max_new_tokens, options.min_new_tokens, options.min_length)
    is_eos = eos_mask(ops.convert_to_tensor(options.eos_token_id, "int32"), VOCAB)
    arrays = map(ops.convert_to_tensor, (tokens, starts, np.int32(PROMPT), np.int32(len(made[0]))))
    context = Context(*arrays, is_eos, *(ops.convert_to_tensor(n, "int32") for n in numbers))
    if source is not None:
        context = context._replace(source=ops.convert_to_tensor(source))
    active = np.array([processor.wanted(options) for processor in PROCESSORS.values()])
    bits = np.full((len(prompts), -(-VOCAB // 32)), -1, "int32") if allowed is None else allowed
    extras = {"allowed": bits}
    for processor in PROCESSORS.values():
        extras |= dict(zip(processor.names, processor.tensors(options, VOCAB), strict=True))
    extras = {name: ops.convert_to_tensor(value) for name, value in extras.items()}
    arguments = ops.convert_to_tensor(scores), context, ops.convert_to_tensor(active), extras, PROCESSORS
    return ops.convert_to_numpy(process(*arguments))


def theirs(scores, prompts, made, options, source=None):
    """The same by transformers, each row alone; its own order but for penalties that it does not have."""
    rows, sources = [], prompts if source is None else [row[row >= 0].tolist() for row in source]
    for row, prompt, tokens, read in zip(scores, prompts, made, sources, strict=True):
        o, chain = options, reference.LogitsProcessorList()
        if o.sequence_bias:
            chain.append(reference.SequenceBiasLogitsProcessor(dict(o.sequence_bias)))
        if o.encoder_repetition_penalty != 1:
            ids = torch.tensor([read])
            chain.append(reference.EncoderRepetitionPenaltyLogitsProcessor(o.encoder_repetition_penalty, ids))
        if o.repetition_penalty != 1:
            chain.append(reference.RepetitionPenaltyLogitsProcessor(o.repetition_penalty))
        if o.no_repeat_ngram_size:
            chain.append(reference.NoRepeatNGramLogitsProcessor(o.no_repeat_ngram_size))
        if o.encoder_no_repeat_ngram_size:
            ids = torch.tensor([read])
            chain.append(reference.EncoderNoRepeatNGramLogitsProcessor(o.encoder_no_repeat_ngram_size, ids))
        if o.bad_words_ids:
            words = [list(word) for word in o.bad_words_ids]
            chain.append(reference.NoBadWordsLogitsProcessor(words, list(o.eos_token_id)))
        if not o.min_new_tokens:  # as in `generate`
            chain.append(reference.MinLengthLogitsProcessor(o.min_length, list(o.eos_token_id)))
        least = reference.MinNewTokensLengthLogitsProcessor(len(prompt), o.min_new_tokens, list(o.eos_token_id))
        chain.append(least)
        if o.forced_bos_token_id is not None:
            chain.append(reference.ForcedBOSTokenLogitsProcessor(o.forced_bos_token_id))
        if o.forced_eos_token_id:
            length = len(prompt) + o.max_new_tokens
            chain.append(reference.ForcedEOSTokenLogitsProcessor(length, list(o.forced_eos_token_id)))
        if o.exponential_decay_length_penalty is not None:
            pair, ends = o.exponential_decay_length_penalty, list(o.eos_token_id)
            chain.append(reference.ExponentialDecayLengthPenalty(pair, ends, len(prompt)))
        if o.suppress_tokens:
            chain.append(reference.SuppressTokensLogitsProcessor(o.suppress_tokens))
        if o.begin_suppress_tokens:
            first = len(prompt) + (len(prompt) == 1 and o.forced_bos_token_id is not None)
            chain.append(reference.SuppressTokensAtBeginLogitsProcessor(o.begin_suppress_tokens, first))
        ids = torch.tensor([[*prompt, *tokens]])
        rows.append(chain(ids, torch.tensor(row[None]))[0].numpy())
    return np.maximum(np.stack(rows), FORBIDDEN)


token = st.integers(0, 5)  # few, so that they repeat
words = st.lists(st.lists(token, min_size=1, max_size=4).map(tuple), max_size=6, unique=True).map(tuple)
options = st.builds(
    GenerationOptions,
    max_new_tokens=st.just(NEW),
    eos_token_id=st.sampled_from([(2,), EOS]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    sequence_bias=st.dictionaries(
        st.lists(token, min_size=1, max_size=3).map(tuple), st.sampled_from([-2.5, 0.5, 3.0]), max_size=6
    ),
    encoder_repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    exponential_decay_length_penalty=st.none() | st.tuples(st.integers(0, 4), st.sampled_from([1.2, 0.9])),
    encoder_no_repeat_ngram_size=st.integers(0, 4),
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
@examples(150)
@given(data=st.data(), options=options, seed=st.integers(0, 2**31), step=st.integers(0, NEW - 1))
def test_any_combination_equals_the_reference(data, options, seed, step):
    lengths = data.draw(st.lists(st.integers(1, PROMPT), min_size=1, max_size=3))
    prompts = [data.draw(st.lists(token, min_size=n, max_size=n)) for n in lengths]
    made = [data.draw(st.lists(token, min_size=step, max_size=step)) for _ in lengths]
    scores = np.random.default_rng(seed).normal(0, 2, (len(lengths), VOCAB)).astype("float32")
    source = np.full((len(lengths), 7), -1, "int32")  # what an encoder reads
    for row in source:
        read = data.draw(st.lists(token, min_size=1, max_size=7))
        row[: len(read)] = read
    source = data.draw(st.none() | st.just(source))
    made_by_us, made_by_them = (each(scores, prompts, made, options, source) for each in (ours, theirs))
    np.testing.assert_allclose(made_by_us, made_by_them, rtol=1e-6, atol=1e-6)


def test_presence_and_frequency_penalties_count_the_completion_only():
    """As in OpenAI's interface: logits minus presence, and minus frequency for each time that a token was made."""
    options = GenerationOptions(presence_penalty=0.5, frequency_penalty=0.25, max_new_tokens=NEW)
    out = ours(np.ones((2, VOCAB), "float32"), [[4, 5], [6]], [[7, 7, 8], [9, 7, 6]], options)
    expected = np.ones((2, VOCAB), "float32")
    expected[0, [7, 8]] -= (0.5 + 2 * 0.25, 0.5 + 0.25)
    expected[1, [9, 7, 6]] -= 0.5 + 0.25
    np.testing.assert_allclose(out, expected)


def test_an_end_that_has_become_ever_likelier_stays_finite():
    decay = dict(exponential_decay_length_penalty=(0, 1e30), eos_token_id=EOS)
    out = ours(np.ones((1, VOCAB), "float32"), [[4]], [[5, 6, 7]], GenerationOptions(**decay, max_new_tokens=NEW))
    assert np.isfinite(out).all() and (out[0, list(EOS)] > 1e15).all()


def test_only_what_a_grammar_allows_is_left():
    options = GenerationOptions(regex="a", suppress_tokens=[4], max_new_tokens=NEW)
    bits = np.array([[1 << 4 | 1 << 7], [-1]], "int32")
    out = ours(np.zeros((2, VOCAB), "float32"), [[4], [5]], [[], []], options, allowed=bits)
    assert [np.flatnonzero(row == 0).tolist() for row in out] == [[7], [i for i in range(VOCAB) if i != 4]]


@pytest.mark.parametrize(("size", "forbidden"), [(1, {4, 5, 6}), (2, {5, 6}), (3, {6}), (4, set())])
def test_no_ngram_occurs_twice(size, forbidden):
    scores = np.zeros((1, VOCAB), "float32")
    out = ours(scores, [[4, 5, 4, 6]], [[5, 4]], GenerationOptions(no_repeat_ngram_size=size, max_new_tokens=NEW))
    assert set(np.flatnonzero(out[0] == FORBIDDEN)) == forbidden


def test_a_word_longer_than_the_text_so_far_forbids_nothing():
    scores = np.zeros((1, VOCAB), "float32")
    out = ours(scores, [[4]], [[]], GenerationOptions(bad_words_ids=[[0, 0, 4, 7]], max_new_tokens=NEW))
    assert (out == 0).all()


def test_a_bias_of_minus_infinity_forbids_and_no_penalty_brings_it_back():
    minus = float("-inf")
    options = dict(sequence_bias={(7,): minus, (5, 8): minus, (4, 9): minus}, encoder_repetition_penalty=3.0)
    out = ours(np.ones((1, VOCAB), "float32"), [[7, 8, 5]], [[]], GenerationOptions(**options, max_new_tokens=NEW))
    assert set(np.flatnonzero(out[0] <= FORBIDDEN / 2)) == {7, 8}


def test_words_of_up_to_eight_tokens_have_one_shape():
    def shapes(words):
        bias = {"sequence_bias": [(word, 1.0) for word in words]}
        tables = PROCESSORS["bad_words_ids"].tensors(GenerationOptions(bad_words_ids=words), VOCAB)
        tables += PROCESSORS["sequence_bias"].tensors(GenerationOptions(**bias), VOCAB)
        return [np.shape(table) for table in tables]

    assert shapes([[4]]) == shapes([list(range(4, 12))]) == shapes([[4] * 8] * 16)
    assert shapes([[4] * 9]) != shapes([[4] * 8]) != shapes([[4]] * 17)
