"""Guesses: where they come from, that they change nothing but the number of runs, and what they may cost at most."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.call import Call
from keras_xla.engine.generator import Generator
from keras_xla.engine.runs import speculation
from keras_xla.engine.runs.deadline import Deadline
from keras_xla.engine.runs.speculation import (
    FREE_READINGS,
    GAIN_OVER_PRICE,
    GAIN_OVER_PRICE_OF_READER,
    MOST_READINGS,
    PATIENCE,
    PATIENCE_OF_READER,
    PLAIN_EVERY,
    PRICE,
    RunTimes,
)
from keras_xla.engine.search.prompt_lookup import LONGEST, look_up
from keras_xla.engine.search.speculate import FREE_CHECKS, LEAST_FREE, MOST_CHECKS, SLACK, UNKNOWN, sizes_of
from tests import examples
from tests.engine.fake import ALPHABET, EOS, Follow, Recall, decode, encode
from tests.engine.prices import check_always, set_to


def new_generator(sharpness=10.0):
    return Generator(Recall(sharpness, None), Buckets("batch", (1, 4)), Buckets("cache", (32, 256)))


generator = functools.cache(new_generator)
RARE = [[i] for i in range(4, len(ALPHABET))]  # without them four letters are left


@pytest.fixture
def always(monkeypatch):
    check_always(monkeypatch)


@pytest.fixture
def steady(monkeypatch):
    """A clock of its own: a run takes a second, and two with guesses."""
    learn = RunTimes.took

    def took(times, seconds, plain, *checked):
        learn(times, seconds and float(plain + 2 * sum(checked)), plain, *checked)

    monkeypatch.setattr(RunTimes, "took", took)


def generate(texts, guesses, count=None, gen=None, **options):
    """The outputs, and how often the model ran: without guesses, and with them."""
    options = {"max_new_tokens": 20, "eos_token_id": EOS, "pad_token_id": 0, **options}
    run = (gen or generator()).start(Call([encode(text) for text in texts], GenerationOptions(**options | guesses)))
    for _ in run.advance(Deadline(), count=count):
        pass
    runs, outputs = getattr(run.generation, "runs", None), run.outputs()
    run.close()
    return outputs, runs


def looked_up(texts, next_slots=None, source=None, count=4):
    """What is guessed behind each text, and how many letters were alike."""
    ids = np.array([encode(text) for text in texts])
    starts = np.array([len(text) - len(text.lstrip("_")) for text in texts], np.int32)
    next_slots = np.array([len(text) for text in texts] if next_slots is None else next_slots, np.int32)
    source = None if source is None else ops.convert_to_tensor(np.array(source, np.int32))
    made = look_up(*map(ops.convert_to_tensor, (ids, starts, next_slots)), source, count)
    tokens, matched = map(ops.convert_to_numpy, made)
    return [decode(row) for row in tokens], matched.tolist()


@pytest.mark.parametrize(
    ("text", "guess", "matched"),
    [
        ("abcdefab", "cdef", 2),
        ("abcabdab", "dabd", 2),  # the last of two
        ("dabcfabgdab", "cfab", 3),  # the longer before the later one
        ("gabcdehabcd", "ehab", LONGEST),
        ("abab", "abab", 2),  # on and on
        ("aaa", "aaaa", 2),
        ("abcd", None, 0),
        ("a", None, 0),
    ],
)
def test_a_text_goes_on_as_it_did_where_it_was_the_same(text, guess, matched):
    tokens, found = looked_up([text])
    assert found == [matched] and guess in (tokens[0], None)


def test_rows_are_looked_up_each_for_itself_up_to_its_end():
    tokens, found = looked_up(["__cdeacd", "abcdabgh"], next_slots=[8, 6])
    assert tokens == ["eacd", "cdab"] and found == [2, 2]


def test_padding_is_no_text():
    assert looked_up(["____ab"])[1] == [0]


def test_what_an_encoder_reads_is_text_too():
    source = [[*encode("bcdefg"), -1, -1]]
    tokens, found = looked_up(["hbc"], source=source)
    assert found == [2] and tokens == ["defg"]
    assert looked_up(["bcabc"], source=source)[0] == ["abca"]  # what was made comes first


@pytest.mark.quick_on_jax
@examples(60)
@given(st.text("abc", min_size=1, max_size=14), st.integers(0, 3), st.integers(0, 3))
def test_the_place_is_the_last_of_those_with_the_most_tokens_alike(text, before, behind):
    def alike(place):
        return next((n for n in range(LONGEST) if n > place or text[place - n] != text[len(text) - 1 - n]), LONGEST)

    best = max(((alike(place), place) for place in range(len(text) - 1)), default=(0, 0))
    tokens, found = looked_up(["_" * before + text + "g" * behind], next_slots=[before + len(text)])
    assert found == [best[0]]
    if best[0]:
        expected = text[best[1] + 1 :]
        assert tokens == [(expected * 4)[:4]]


PROMPTS = st.lists(
    st.builds(lambda word, n: word * n, st.text("abcdefgh", min_size=1, max_size=5), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)
OPTIONS = {
    "greedy": {},
    "without end": dict(eos_token_id=None),
    "sampled": dict(do_sample=True, temperature=3.0, seed=5),
    "penalty": dict(repetition_penalty=1.5, sequence_bias={(1, 2): 4.0}),
    "no repeated pairs": dict(no_repeat_ngram_size=2),
    "words": dict(bad_words_ids=[[3], [4, 5]], min_new_tokens=5, frequency_penalty=0.4),
    "ends": dict(eos_token_id=[2, 5, 8], exponential_decay_length_penalty=(3, 1.3)),
    "long": dict(max_new_tokens=45),
}


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROMPTS, st.sampled_from(sorted(OPTIONS)), st.sampled_from([1, 5]), st.sampled_from([None, 1, 3]))
@pytest.mark.slow
def test_what_is_made_is_what_is_made_without_guesses(always, texts, name, guesses, count):
    plain, _ = generate(texts, {}, **OPTIONS[name])
    made, _ = generate(texts, dict(prompt_lookup_num_tokens=guesses), count, **OPTIONS[name])
    for key in ("sequences", "lengths"):
        np.testing.assert_array_equal(made[key], plain[key])
    np.testing.assert_allclose(made["scores"], plain["scores"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("guesses", [{}, dict(prompt_lookup_num_tokens=3)], ids=["plain", "guesses"])
@pytest.mark.slow
def test_draws_have_the_distribution_of_the_model(always, guesses):
    """The chi-squared statistic of the second and the third token of 8,192 answers: 99 degrees of freedom."""
    gen, text = Generator(Recall(2.0, None), Buckets("batch", (512,)), Buckets("cache", (32,))), "abcabc"
    expected, letters, counts, checks = np.zeros((10, 10)), range(len(ALPHABET)), np.zeros((10, 10)), 0
    for first, second in itertools.product(letters, letters):
        tokens, likely = encode(text).tolist(), 1.0
        for token in (first, second):
            likely *= next_letter(tokens, 2.0)[token]
            tokens.append(token)
        expected[second] += likely * next_letter(tokens, 2.0)
    for seed in range(16):
        options = dict(do_sample=True, top_k=0, seed=seed, max_new_tokens=3, eos_token_id=None)
        out, runs = generate([text] * 512, guesses, gen=gen, **options)
        np.add.at(counts, tuple(out["sequences"][:, 1:].T), 1)
        checks += 0 if runs is None else runs[1]
    assert (checks > 0) == bool(guesses)
    statistic = ((counts - 8192 * expected) ** 2 / (8192 * expected)).sum()
    assert statistic < 160, statistic  # p < 1e-4 beyond


def next_letter(tokens, sharpness):
    """The probabilities of what `Recall` has behind these tokens."""
    logits = np.zeros(len(ALPHABET))
    logits[1 + np.dot(tokens[:-4:-1], (3, 5, 7)) % (len(ALPHABET) - 1)] = sharpness
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.slow
def test_rows_have_lengths_of_their_own(always):
    texts, most = ["abcdabcd", "a", "hgf", "eeee"], (3, 20, 1, 40)
    plain, _ = generate(texts, {}, max_new_tokens=most, eos_token_id=None)
    made, _ = generate(texts, dict(prompt_lookup_num_tokens=5), max_new_tokens=most, eos_token_id=None)
    np.testing.assert_array_equal(made["sequences"], plain["sequences"])
    assert made["lengths"].tolist() == list(most)


@pytest.mark.slow
def test_a_text_that_repeats_takes_a_fraction_of_the_runs(always):
    out, runs = generate(["abcabc"], dict(prompt_lookup_num_tokens=5), max_new_tokens=200, eos_token_id=None)
    assert out["lengths"].tolist() == [200]
    assert runs[1] > 0 and runs.sum() < 200 / 3


@pytest.mark.slow
def test_rows_come_on_at_their_own_speed(always):
    """Four rows need hardly more runs than the slowest of them alone."""
    texts = ["abcabc", "hgfedcba", "bbbb", "cdcd"]
    options = dict(max_new_tokens=120, eos_token_id=None)
    alone = [generate([text], dict(prompt_lookup_num_tokens=5), **options)[1].sum() for text in texts]
    together = generate(texts, dict(prompt_lookup_num_tokens=5), **options)[1].sum()
    assert together <= max(alone) + 3


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_guesses_that_are_wrong_cost_no_more_than_agreed(seed):
    """Draws at random: two letters have always been there before, and hardly ever with the same letter behind them.

    The generator is a new one, which goes by the price that holds while none was measured.
    """
    options = dict(max_new_tokens=200, eos_token_id=None, do_sample=True, seed=seed, gen=new_generator(0.0))
    out, (plain, checked) = generate(["abcdefgh"], dict(prompt_lookup_num_tokens=5), count=200, **options)
    assert out["lengths"].tolist() == [200] and checked >= FREE_CHECKS[0]
    agreed = 200 + FREE_CHECKS[0] * PRICE + SLACK * plain
    assert plain + checked * (1 + PRICE) <= agreed + 1e-3


@pytest.mark.slow
def test_a_row_that_repeats_costs_the_others_no_more_than_agreed():
    """A batch takes as long as its slowest row, here one that draws at random."""
    gen = new_generator()
    options = dict(max_new_tokens=200, eos_token_id=None, do_sample=True, seed=3, gen=gen)
    options |= dict(temperature=[1.0, 1e4], top_k=0)
    out, (plain, checked) = generate(["abcabc", "abcdefgh"], dict(prompt_lookup_num_tokens=5), count=200, **options)
    assert out["lengths"].min() > 150 and checked >= FREE_CHECKS[1]
    agreed = 200 + FREE_CHECKS[1] * PRICE + SLACK * plain
    assert plain + checked * (1 + PRICE) <= agreed + 1e-3


def a_second_a_run(sizes=1):
    """Times of an executable whose kinds have all run, of which only those without guesses were measured."""
    times, checks = RunTimes(sizes), [1] * sizes
    times.took(None, 3, *checks)
    times.took(4.0, 4, *(0 for _ in checks))
    return times


def test_a_price_is_measured_in_runs_without_guesses():
    times = RunTimes()
    assert times.price == PRICE and not times.wanting
    times.took(None, 1, 3)  # compiled
    assert times.price == PRICE and times.wanting
    times.took(1.0, 0, 1)  # nothing to compare with yet
    assert times.price == PRICE and times.wanting
    times.took(4.0, 4, 0)
    assert not times.wanting
    times.took(3 * 4.0, 0, 3)
    assert times.price == 3.0


def test_a_check_has_to_be_worth_it_once_its_price_is_known():
    times = RunTimes()
    assert times.least == 0  # a first check tells
    times.took(None, 3, 1)
    times.took(4.0, 4, 0)
    times.took(2.0, 0, 1)
    assert times.least == pytest.approx(GAIN_OVER_PRICE * times.price) and times.price < PRICE
    before = times.price
    for _ in range(60):
        times.took(10.0, 10, 0)
    assert times.price == pytest.approx(before, rel=0.3)  # what is cheap is not forgotten


def test_a_few_checks_among_many_runs_tell_little_of_a_price():
    times = a_second_a_run()
    times.took(49 * 1.1 + 2.5, 49, 1)  # a machine that was a tenth slower
    assert times.price == pytest.approx(PRICE, abs=0.15)


@pytest.mark.parametrize("most", [1, 4])
def test_a_machine_that_is_busy_now_and_then_changes_no_price_by_much(most):
    rng, times = np.random.default_rng(0), a_second_a_run()
    times.took(4 * 1.6, 0, 4)
    for i in range(400):
        plain, checked = (4, 0) if times.wanting else (8, rng.integers(0, most, endpoint=True))
        slower = (1.4 if i // 10 % 2 else 1.0) * rng.uniform(0.9, 1.1)
        times.took(slower * (plain + 1.6 * checked), plain, checked)
        assert 0.4 < times.price < 1.1


def test_a_check_that_was_quicker_than_a_run_is_measured_anew():
    times = a_second_a_run()
    times.took(4 * 1.6, 0, 4)
    times.took(40.0, 4, 0)  # somebody else was at work
    times.took(4 + 1.6, 4, 1)
    assert times.wanting and times.tried == 0 and times.price == pytest.approx(0.6)
    times.took(4.0, 4, 0)
    times.took(4 * 1.5, 0, 4)
    assert times.tried is None and times.price == pytest.approx(0.5)


def test_a_run_without_guesses_takes_no_longer_than_any_other():
    """It was measured while somebody else was at work: else checks would look as if they cost nothing."""
    times = RunTimes()
    times.took(None, 3, 1)
    times.took(40.0, 4, 0)
    times.took(4 * 1.0 + 2.5, 4, 1)
    assert times.wanting and times.price == PRICE


def test_runs_without_guesses_are_measured_now_and_then():
    times = a_second_a_run()
    for _ in range(64):
        assert not times.wanting
        times.took(6.0, 2, 2)
    assert times.wanting


def test_a_price_that_forbids_all_checks_does_not_hold_for_ever():
    times = a_second_a_run()
    times.took(100.0, 0, 1)  # somebody else was at work
    assert times.price > 50 and times.tried is None
    for _ in range(50):
        times.took(10.0, 10, 0)
    assert times.tried == 0 and times.least == 0
    times.took(6.0, 0, 4)
    assert times.price == 0.5 and times.tried is None


@pytest.mark.parametrize(("reads", "first"), [(False, PATIENCE), (True, PATIENCE_OF_READER)])
def test_what_is_too_dear_each_time_is_tried_less_and_less_often(reads, first):
    times, tried = RunTimes(reads=reads), []
    times.took(None, 3, 1)
    times.took(4.0, 4, 0)
    for _ in range(4):
        times.took(100.0, 0, 1)
        runs = 0
        while times.tried is None:
            times.took(16.0, 16, 0)
            runs += 16
        tried.append(runs)
    assert first < tried[0] <= first + 16
    assert all(late > 1.9 * early for early, late in itertools.pairwise(tried))


def test_runs_in_which_there_was_nothing_to_guess_say_nothing_of_the_price():
    times = a_second_a_run()
    for _ in range(2000):
        times.took(16.0, 16, 0)
    times.took(100.0, 0, 1)
    for _ in range(PLAIN_EVERY // 16 + 1):
        times.took(16.0, 16, 0)
    assert times.tried == 0  # again as soon as ever


def test_a_size_that_was_in_use_in_between_is_tried_again_as_soon_as_ever():
    times = a_second_a_run()
    for seconds in (100.0, 100.0, 100.0, 1.5):
        times.took(seconds, 0, 1)  # which tells its price
        if seconds == 1.5:
            times.took(1.5, 0, 1)  # as it is cheap
        runs = 0
        while times.tried is None:
            times.took(16.0, 16, 0)
            runs += 16
    assert runs == PLAIN_EVERY + 16


def test_a_size_that_an_assistant_gained_by_is_tried_again_soon():
    """Where nothing but checks run, a machine that becomes slower looks like checks that have become dear."""
    times = RunTimes(reads=True)
    times.took(None, 3, 1)
    times.took(4.0, 4, 0)
    for seconds in (1.5, 1.5, *[9.0] * 12):
        times.took(seconds, 0, 1)
    assert times.price > 5 and times.tried is None
    for runs in (64, 128, 256):
        for _ in range(runs // 16):
            times.took(16.0, 16, 0)
        assert times.tried is None
        times.took(1.0, 1, 0)
        assert times.tried == 0
        times.took(9.0, 0, 1)  # it is still too dear: less often from then on


def test_a_price_that_was_only_a_little_wrong_does_not_hold_for_ever_either():
    """A size that pays less than the other one does not run, so that nothing else would tell."""
    times = a_second_a_run(sizes=2)
    times.took(2.3, 0, 1, 0)  # a busy machine
    times.took(1.6, 0, 0, 1)
    assert times.price.tolist() == pytest.approx([1.3, 1.3])  # more guesses cost no less
    for _ in range(PATIENCE // 16 + 1):
        times.took(16 * 1.6, 0, 0, 16)
    assert times.tried == 0
    times.took(1.4, 0, 1, 0)
    assert times.price.tolist() == pytest.approx([0.4, 0.6])


def test_a_generation_begins_with_what_another_had_left_within_limits():
    times = RunTimes()
    times.left(np.array([-3.0, 0.5]), UNKNOWN)
    assert times.free == FREE_CHECKS  # enough to tell the price
    times.took(None, 3, 1)
    times.took(4.0, 4, 0)
    times.took(2.0, 0, 1)
    assert times.free == LEAST_FREE
    times.left(np.array([1.5, 99.0]), 15.0)
    assert times.free == (1.5, FREE_CHECKS[1])
    assert times.gain == UNKNOWN  # another text may repeat nothing


def test_an_assistant_begins_with_all_that_it_had_left_and_what_it_has_shown():
    times = RunTimes(reads=True)
    assert times.gain == UNKNOWN
    times.took(None, 3, 1)
    times.took(4.0, 4, 0)
    times.took(2.0, 0, 1)
    assert times.least == pytest.approx(GAIN_OVER_PRICE_OF_READER * times.price)
    times.left(np.array([3.0, 99.0]), 12.0)
    assert times.free == (3.0, MOST_CHECKS[1]) and times.gain == 12.0
    times.left(np.array([-1.0, 0.0]), 0.5)  # of what was bad, another text gets its chance
    assert times.free == LEAST_FREE and times.gain == UNKNOWN


def test_an_assistant_reads_on_while_what_it_has_gained_pays_for_that():
    times = RunTimes(reads=True)
    times.took(None, 3, 1)
    times.took(4.0, 4, 0)
    times.took(2.0, 0, 1)
    price = times.price[0]
    for _ in range(FREE_READINGS):
        assert times.may_read
        times.read(30.0 + 2 + 3 * (1 + price), 2, 3)  # two runs without guesses and three with
        times.earn(-30.0)
    assert times.reading == pytest.approx(30.0) and not times.may_read
    times.earn(29.0 * FREE_READINGS)
    assert not times.may_read
    times.earn(1e6)
    assert times.may_read
    times.earn(-30.0 * MOST_READINGS - 1)
    assert not times.may_read


def test_guesses_from_the_prompt_read_nothing():
    times = RunTimes()
    times.earn(-1e6)
    assert times.may_read and times.reading == 0


@pytest.mark.slow
def test_many_texts_that_nobody_can_guess_cost_less_each(steady):
    """Draws at random from four letters, each of which has been there before; a check costs a step."""
    gen, costs = new_generator(0.0), []
    options = dict(max_new_tokens=200, eos_token_id=None, do_sample=True, bad_words_ids=RARE)
    for seed in range(6):
        _, runs = generate(["abcdabcdabcd"] * 4, dict(prompt_lookup_num_tokens=5), gen=gen, seed=seed, **options)
        costs.append(runs[0] + 2 * runs[1] - 200)
    assert max(costs[-3:]) < costs[0] <= FREE_CHECKS[1] + SLACK * 200 + 1
    assert max(costs[-3:]) <= LEAST_FREE[1] + SLACK * 200


@pytest.mark.parametrize(
    ("sharpness", "options", "least", "most"),
    [(0.0, dict(do_sample=True, seed=1, bad_words_ids=RARE), 0.0, 1.0), (10.0, {}, 5.0, 20.0)],
    ids=["draws at random", "a text that repeats"],
)
@pytest.mark.slow
def test_runs_without_guesses_show_what_guesses_are_worth(monkeypatch, sharpness, options, least, most):
    set_to(monkeypatch, 100.0, "price", "least")  # nobody checks any
    for name, value in dict(wanting=False, tried=None, unmixed=0).items():
        monkeypatch.setattr(RunTimes, name, value)
    options = GenerationOptions(max_new_tokens=120, eos_token_id=None, prompt_lookup_num_tokens=5, **options)
    generation = new_generator(sharpness).start(Call([encode("abcabc")] * 4, options)).generation
    while generation.unfinished:
        generation.advance(120)
    *_, gain = generation._saved
    assert generation.runs[1] == 0 and least <= gain <= most


@pytest.mark.slow
def test_while_nobody_knows_a_price_a_call_is_of_one_kind_of_runs(steady):
    gen, plain = new_generator(), dict(max_new_tokens=160, eos_token_id=None)
    run = gen.start(Call([encode("hgfedcba")], GenerationOptions(**plain, prompt_lookup_num_tokens=5)))
    run.generation.advance(1)  # which compiles, and tells nothing
    calls, before = [], run.generation.runs.copy()
    while run.generation.unfinished:
        run.generation.advance(200)
        calls.append((run.generation.runs - before).tolist())
        before = run.generation.runs.copy()
    made = run.outputs()
    run.close()
    np.testing.assert_array_equal(made["sequences"], generate(["hgfedcba"], {}, gen=gen, **plain)[0]["sequences"])
    *pricing, rest = calls
    assert all(0 in call and call[1] <= speculation.PRICED_CHECKS for call in pricing)
    assert sum(checked for _, checked in pricing) >= 4  # of both sizes, the first of which tells nothing
    assert len(pricing) < 12 and rest[1] > speculation.PRICED_CHECKS  # one call makes all that is left


@pytest.mark.slow
def test_a_size_that_has_no_room_keeps_no_other_from_running(steady):
    gen = Generator(Recall(), Buckets("batch", (1,)), Buckets("cache", (64,)))
    options = dict(max_new_tokens=50, eos_token_id=None, gen=gen)
    for _ in range(3):  # 20 letters and 60 guesses are too many
        out, runs = generate(["abcab" * 2], dict(prompt_lookup_num_tokens=60), **options)
    np.testing.assert_array_equal(out["sequences"], generate(["abcab" * 2], {}, **options)[0]["sequences"])
    assert runs[1] > 0


@pytest.mark.slow
def test_what_tells_a_price_is_paid_for_by_nobody(steady):
    """Draws at random, all guesses of which are wrong: the account is what it was, and grows by what other runs add."""
    gen = new_generator(0.0)
    options = dict(max_new_tokens=60, eos_token_id=None, do_sample=True, seed=1, prompt_lookup_num_tokens=5)
    run = gen.start(Call([encode("abcdefgh" * 2)], GenerationOptions(**options)))
    run.generation.advance(1)
    times = run.generation._times(run.generation._executable(run.generation._key))
    while times.plan().tried is not None and run.generation.unfinished:
        before, runs = run.generation._saved.copy(), run.generation.runs.copy()
        run.generation.advance(200)
        plain, checked = run.generation.runs - runs
        if checked and not plain:
            assert (run.generation._saved[:2] >= before[:2]).all()
    run.close()


@pytest.mark.parametrize(
    ("guesses", "sizes"), [(1, (1,)), (4, (4,)), (5, (2, 5)), (8, (3, 8)), (10, (4, 10)), (64, (22, 64))]
)
def test_few_guesses_or_all_are_checked(guesses, sizes):
    assert sizes_of(guesses) == sizes


@pytest.mark.parametrize(("price", "tokens"), [((0.01, 0.02), 9), ((0.01, 9.0), 4)])
@pytest.mark.quick("price1-4")
def test_what_costs_least_a_token_is_checked(always, monkeypatch, price, tokens):
    """Of 8 guesses all or 3, once a text goes on as it did."""
    set_to(monkeypatch, price, "price")
    guesses = dict(prompt_lookup_num_tokens=8)
    out, (plain, checked) = generate(["abcabc"], guesses, count=200, max_new_tokens=200, eos_token_id=None)
    assert out["lengths"].tolist() == [200] and plain < 40
    assert (200 - plain) / tokens <= checked <= 1.4 * (200 - plain) / tokens


@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROMPTS, st.sampled_from(sorted(OPTIONS)), st.sampled_from([(0.01, 9.0), (0.3, 0.6)]))
@pytest.mark.slow
def test_what_is_made_does_not_depend_on_how_many_guesses_are_checked(always, monkeypatch, texts, name, price):
    plain, _ = generate(texts, {}, **OPTIONS[name])
    set_to(monkeypatch, price, "price")
    made, _ = generate(texts, dict(prompt_lookup_num_tokens=5), **OPTIONS[name])
    for key in ("sequences", "lengths"):
        np.testing.assert_array_equal(made[key], plain[key])


@pytest.mark.quick_on_jax
def test_where_all_guesses_have_no_room_few_are_checked(always):
    gen = Generator(Recall(), Buckets("batch", (1,)), Buckets("cache", (16,)))
    options = dict(max_new_tokens=10, eos_token_id=None, gen=gen)
    out, (_, checked) = generate(["abcabc"], dict(prompt_lookup_num_tokens=11), **options)
    assert out["lengths"].tolist() == [10] and checked > 0  # 6 letters and 12 more are too many
    np.testing.assert_array_equal(out["sequences"], generate(["abcabc"], {}, **options)[0]["sequences"])


def test_the_first_run_without_guesses_tells_nothing_either():
    times = RunTimes()
    times.took(None, 0, 5)
    times.took(100.0, 4, 0)
    assert times.wanting and times.price == PRICE
    times.took(4.0, 4, 0)
    times.took(6.0, 0, 2)
    assert times.price == 2.0


def test_the_first_run_of_a_size_tells_nothing_of_its_price():
    times = RunTimes(sizes=2)
    times.took(None, 2, 0, 3)  # compiled, with checks of the second size
    assert times.unmixed == 1 and times.tried == 0
    times.took(4.0, 4, 0, 0)
    times.took(9.0, 0, 1, 0)
    assert times.tried == 0 and times.unmixed == speculation.PRICED_CHECKS
    times.took(3.0, 0, 2, 0)
    assert times.price.tolist() == [0.5, PRICE] and times.tried == 1
    times.took(8.0, 0, 0, 2)
    assert times.price.tolist() == [0.5, 3.0] and times.tried is None and times.unmixed == 0
    np.testing.assert_allclose(times.least, GAIN_OVER_PRICE * times.price)


def test_a_price_that_was_measured_before_is_measured_again_with_one_check():
    times = a_second_a_run()
    times.took(8.0, 0, 4)
    assert times.price == 1.0
    times.took(400.0, 400, 0)
    assert times.tried == 0 and times.unmixed == 1
    times.took(1.5, 0, 1)
    assert times.price == 0.5 and times.tried is None


def test_a_call_of_several_sizes_tells_something_of_each():
    times = a_second_a_run(sizes=2)
    times.took(3.0, 0, 2, 0)
    times.took(8.0, 0, 0, 2)
    for _ in range(20):
        times.took(20 * 1.5 + 8.0, 0, 20, 1)  # one is twice as slow as before
    small, large = times.price + 1
    assert 20 * small + large == pytest.approx(20 * 1.5 + 8.0, rel=0.01)
    assert (small / 1.5, large / 4.0) == pytest.approx((1.13, 1.02), abs=0.01)  # by how much of the call it was


def test_where_few_guesses_are_too_dear_nobody_tries_more():
    times = a_second_a_run(sizes=2)
    assert times.tried == 0 and times.least.tolist() == [0, GAIN_OVER_PRICE * PRICE]
    times.took(20.0, 0, 2, 0)
    assert times.tried is None and times.price.tolist() == [9.0, 9.0]
    np.testing.assert_allclose(times.least, 9.0 * GAIN_OVER_PRICE)


def test_a_size_that_is_too_dear_is_tried_again_though_the_other_is_in_use():
    times = a_second_a_run(sizes=2)
    times.took(3.0, 0, 2, 0)
    times.took(100.0, 0, 0, 2)
    for _ in range(PATIENCE // 16 + 1):
        assert times.tried is None
        times.took(20.0, 8, 8, 0)
    assert times.tried == 1 and times.price[0] == pytest.approx(0.5, abs=0.05) and times.price[1] > 40


@pytest.mark.slow
def test_options_compile_nothing_and_a_number_of_guesses_once(new_events):
    gen = Generator(Recall(), Buckets("batch", (4,)), Buckets("cache", (64,)))
    for n in range(1, 5):
        options = dict(do_sample=n > 2, max_new_tokens=4 * n, repetition_penalty=float(n), eos_token_id=EOS)
        gen(Call([encode("abcabc")] * n, GenerationOptions(**options, prompt_lookup_num_tokens=3)))
    assert [event.cause for event in new_events("generate")] == ["first call"] * 2  # the prompt, and the loop


@pytest.mark.slow
def test_more_guesses_than_a_cache_has_room_for():
    gen = Generator(Recall(), Buckets("batch", (1,)), Buckets("cache", (16,)))
    options = dict(max_new_tokens=8, eos_token_id=None)
    made = gen(Call([encode("abcabc")], GenerationOptions(**options, prompt_lookup_num_tokens=64)))
    assert [key.guesses for key in gen.executables.keys if hasattr(key, "guesses")] == [15]
    np.testing.assert_array_equal(
        made["sequences"], gen(Call([encode("abcabc")], GenerationOptions(**options)))["sequences"]
    )


def test_a_model_with_a_cache_of_its_own_is_refused(new_events):
    gen = Generator(Follow(), Buckets("batch"), Buckets("cache", None, 64))
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens=4 for a model with a cache of its own"):
        gen(Call([encode("ab")], GenerationOptions(max_new_tokens=4, prompt_lookup_num_tokens=4)))
    assert not new_events()
