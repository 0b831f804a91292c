"""With `on_error="skip"`, a prompt that cannot be run costs no other its answer."""

import threading

import keras
import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.engine.generator import Generator
from keras_xla.engine.runs.continuous_batching import ContinuousBatching
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.reference import VOCAB
from tests.tokenizers import tiny

BROKEN = 33  # a token whose embedding is NaN, so that the logits of its row are
ROWS = [[5, 6, 7], [8], [9, 10, 11]]


@pytest.fixture(scope="module")
def model(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama2")))
    embedding = next(v for v in model.variables if v.shape[0] == VOCAB)
    values = np.array(keras.ops.convert_to_numpy(embedding))
    values[BROKEN] = np.nan
    embedding.assign(values)
    return model


def made_layer(model, cache_buckets, **options):
    sizes = dict(batch_buckets=(1, 4), cache_buckets=cache_buckets, **options)
    return XLAGenerationLayer(model, tiny(), max_new_tokens=6, generation_config={}, pad_token_id=0, **sizes)


@pytest.fixture(scope="module")
def layer(model):
    return made_layer(model, (32, 64))


@pytest.fixture(scope="module")
def growing(model):
    """Answers of 60 tokens begin in the smaller cache, and end in the larger one."""
    return made_layer(model, (64, 128))


def made(out):
    return [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)]


def test_good_prompts_are_answered_as_without_the_bad_ones(layer):
    good = layer.generate(ROWS)
    with pytest.warns(UserWarning, match=r"2 of 5 prompts have no answer. Prompt 1 .* Prompt 3 .*empty") as said:
        out = layer.generate([ROWS[0], [VOCAB], ROWS[1], [], ROWS[2]], on_error="skip")
    assert said[0].filename == __file__
    assert out["lengths"][[1, 3]].tolist() == [0, 0] and np.isnan(out["scores"][[1, 3]]).all()
    assert not out["sequences"][[1, 3]].any()
    for name, values in good.items():
        np.testing.assert_array_equal(out[name][[0, 2, 4]], values)


def test_an_expression_that_cannot_be_read_costs_no_other_prompt_its_answer(layer):
    pytest.importorskip("llguidance", reason="an extra")
    with pytest.warns(UserWarning, match=r"1 of 2 prompts have no answer. Prompt 1: .*regex"):
        made = layer.generate(["ab", "b"], regex=["a+", "("], on_error="skip", max_new_tokens=2)
    assert made == [layer.generate("ab", regex="a+", max_new_tokens=2)[0], None]


def test_a_chat_that_is_refused_is_named_by_its_number(layer):
    good, bad = [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]
    template = "{% if messages[0].content == 'b' %}{{ raise_exception('no b') }}{% endif %}a"
    with pytest.warns(UserWarning, match=r"chat template refused chat 1: .*no b"):
        made = layer.generate([good, bad], on_error="skip", chat_template=template)
    assert made[0] is not None and made[1] is None


@pytest.mark.parametrize(
    ("options", "text"),
    [({"top_logprobs": 2}, "without output_logprobs"), ({"regex": "("}, "regex"), ({"cancel": 3}, "a threading.Event")],
    ids=["logprobs", "regex", "cancel"],
)
def test_check_raises_what_generate_raises(layer, options, text):
    if "regex" in options:
        pytest.importorskip("llguidance", reason="an extra")
    for call in (layer.check, layer.generate):
        with pytest.raises((TypeError, ValueError), match=text):
            call(["ab", "b"], on_error="skip", **options)


@pytest.mark.parametrize(
    "inputs", [(text for text in ["ab"]), {"ab"}, [5, 6, 7], np.array([5, 6, 7]), 5], ids=lambda x: type(x).__name__
)
def test_what_is_no_list_of_prompts_is_refused_as_a_whole(layer, inputs):
    for options in ({}, {"on_error": "skip"}):
        with pytest.raises((TypeError, ValueError), match=r"Received|expected a list of ids"):
            layer.generate(inputs, **options)


def test_a_column_of_lists_of_ids_is_a_list_of_prompts(layer):
    column = np.empty((2,), object)
    column[:] = [[5, 6], [7]]
    expected, made = layer.generate([[5, 6], [7]]), layer.generate(column, on_error="skip")
    np.testing.assert_array_equal(made["sequences"], expected["sequences"])


def test_the_answer_of_a_bad_text_is_none(layer):
    good = layer.generate(["ab", "b"])
    with pytest.warns(UserWarning, match=r"2 of 4 prompts have no answer. Prompt 1 is empty.* Prompt 2 has \d+ tokens"):
        assert layer.generate(["ab", "", "a" * 5000, "b"], on_error="skip") == [good[0], None, None, good[1]]


@pytest.mark.parametrize("gap", [None, float("nan"), []], ids=["None", "NaN", "an empty chat"])
@pytest.mark.parametrize("column", [list, lambda x: np.array(x, object)], ids=["list", "column"])
def test_a_first_text_that_is_missing(layer, gap, column):
    good = layer.generate(["ab", "b"])
    with pytest.warns(UserWarning, match=r"1 of 3 prompts have no answer. Prompt 0 "):
        assert layer.generate(column([gap, "ab", "b"]), on_error="skip") == [None, *good]
    with pytest.raises((TypeError, ValueError), match="Prompt 0 is"):
        layer.generate([gap, "ab", "b"])


def test_where_no_prompt_is_good_all_outputs_are_there(layer):
    asked = dict(output_logprobs=True, top_logprobs=2, on_error="skip")
    with pytest.warns(UserWarning, match="1 of 2"):
        some = layer.generate([[5, 6], [VOCAB]], **asked)
    with pytest.warns(UserWarning, match="2 of 2"):
        none = layer.generate([[VOCAB], [VOCAB]], **asked)
    assert {name: (x.shape, x.dtype) for name, x in none.items()} == {n: (x.shape, x.dtype) for n, x in some.items()}


def test_a_negative_prompt_that_cannot_be_run_costs_its_prompt_alone(layer):
    asked = dict(guidance_scale=2.0)
    with pytest.warns(UserWarning, match="1 of 3 prompts have no answer. Negative prompt 1 is empty"):
        made = layer.generate(["ab", "cd", "ef"], on_error="skip", negative_prompt=["b", "", "f"], **asked)
    assert made[1] is None
    assert [made[0], made[2]] == layer.generate(["ab", "ef"], negative_prompt=["b", "f"], **asked)
    with pytest.warns(UserWarning, match=r"1 of 1 prompts have no answer. Negative prompt 0 is empty"):
        assert layer.generate(["ab"], on_error="skip", negative_prompt=[""], **asked) == [None]
    for bad, text in ((["b", "c"], "2 negative prompts for 3"), ([""], "Negative prompt 0 is empty")):
        with pytest.raises(ValueError, match=text):
            layer.generate(["ab", "cd", "ef"], on_error="skip", negative_prompt=bad, **asked)


@pytest.mark.parametrize("bad", [[], [5, BROKEN]], ids=["before it runs", "NaN"])
@pytest.mark.quick("NaN")
def test_what_is_left_of_a_batch_needs_no_executable_of_its_own(model, bad):
    layer = made_layer(model, (32, 64), on_recompile="raise")
    layer.warmup(4, 2, output_logprobs=True, verbose=0)
    before = layer.trace_count
    with pytest.warns(UserWarning, match="3 of 4"):
        layer.generate([bad, [5, 6], bad, bad], output_logprobs=True, on_error="skip")
    with pytest.warns(UserWarning, match="1 of 40"):
        layer.generate([[5, 6], *[[8, 9]] * 38, bad], eos_token_id=2, verbose=0, on_error="skip")
    assert layer.trace_count == before


def test_what_runs_again_of_a_long_list_needs_no_executable_of_its_own(model):
    layer = made_layer(model, (32, 64), on_recompile="raise", eos_token_id=2)
    layer.warmup(40, 2, verbose=0)
    before = layer.trace_count
    with pytest.warns(UserWarning, match="1 of 40"):
        out = layer.generate([*[[8, 9]] * 39, [5, BROKEN]], verbose=0, on_error="skip")
    assert np.isnan(out["scores"]).sum() == 1 and layer.trace_count == before
    assert any("continuous" in str(key) for key in layer._generator.executables.keys)


def test_a_call_that_was_ended_does_not_begin_again_with_what_was_nan(layer, monkeypatch):
    rows, cancel = [[5, BROKEN], *[[5 + i % 20, 6] for i in range(39)]], threading.Event()
    outputs = ContinuousBatching.outputs

    def ended(*arguments):
        made = outputs(*arguments)
        cancel.set()
        return made

    monkeypatch.setattr(ContinuousBatching, "outputs", ended)
    with pytest.warns(UserWarning, match="logits are NaN"):
        out = layer.generate(rows, eos_token_id=2, verbose=0, on_error="skip", cancel=cancel)
    assert np.isnan(out["scores"][0]) and out["lengths"][0] == 0


def test_where_only_the_guided_prompts_are_bad(layer):
    with pytest.warns(UserWarning, match="1 of 2"):
        made = layer.generate(["", "ab"], on_error="skip", guidance_scale=[2.0, 1.0], negative_prompt=["ab", "cd"])
    assert made == [None, *layer.generate(["ab"])]


@pytest.mark.parametrize("options", [{}, dict(do_sample=True, seed=1)], ids=["greedy", "sampled"])
def test_a_grammar_that_another_option_leaves_nothing_of_costs_no_other_answer(layer, options):
    asked = dict(regex=["x{8}", None, "y"], no_repeat_ngram_size=2, suppress_tokens=[BROKEN], **options)
    with pytest.raises(ValueError, match="An answer could not go on"):
        layer.generate(["a", "b", "c"], **asked)
    with pytest.warns(UserWarning, match="1 of 3 prompts have no answer. Prompt 0"):
        made = layer.generate(["a", "b", "c"], on_error="skip", **asked)
    assert made[0] is None and made[1] and made[2] == "y"


@pytest.mark.parametrize(
    "many", [4, 40, pytest.param(1000, marks=pytest.mark.slow)], ids=["batches", "rows that make room", "a thousand"]
)
def test_a_row_whose_logits_are_nan(layer, many):
    rows = [[5 + i % 20, 6] for i in range(many)]
    good = layer.generate(rows, eos_token_id=2, verbose=0)
    rows[2] = [5, BROKEN]
    with pytest.raises(ValueError, match="logits are NaN"):
        layer.generate(rows, eos_token_id=2, verbose=0)
    with pytest.warns(UserWarning, match="Prompt 2: the model's logits are NaN"):
        out = layer.generate(rows, eos_token_id=2, verbose=0, on_error="skip")
    assert made(out)[2] == [] and np.isnan(out["scores"][2])
    assert made(out)[:2] + made(out)[3:] == made(good)[:2] + made(good)[3:]


def test_beams_answers_and_options_of_each_prompt(layer):
    options = dict(do_sample=True, num_return_sequences=2, seed=[3, 4, 5], max_new_tokens=[2, 6, 3])
    good = layer.generate([ROWS[0], ROWS[2]], **{**options, "seed": [3, 5], "max_new_tokens": [2, 3]})
    with pytest.warns(UserWarning, match="1 of 3"):
        out = layer.generate([ROWS[0], [], ROWS[2]], on_error="skip", **options)
    assert out["sequences"].shape == (6, 6)
    assert made(out) == [*made(good)[:2], [], [], *made(good)[2:]]
    with pytest.warns(UserWarning, match="NaN"):
        out = layer.generate([ROWS[0], [BROKEN], ROWS[2]], num_beams=2, on_error="skip")
    good = made(layer.generate([ROWS[0], ROWS[2]], num_beams=2))
    assert made(out) == [good[0], [], good[1]]


def test_log_probabilities_and_masks_stay_with_their_prompts(layer):
    ids = {
        "input_ids": np.array([[5, 6, 7], [0, 0, 0], [9, 10, 0]]),
        "attention_mask": np.array([[1, 1, 1], [0, 0, 0], [1, 1, 0]]),
    }
    good = layer.generate([[5, 6, 7], [9, 10]], output_logprobs=True, top_logprobs=2)
    with pytest.warns(UserWarning, match="1 of 3"):
        out = layer.generate(ids, output_logprobs=True, top_logprobs=2, on_error="skip")
    for name, values in good.items():
        np.testing.assert_allclose(out[name][[0, 2]], values, rtol=1e-5)
    assert not out["logprobs"][1].any() and not out["top_tokens"][1].any()


def test_options_that_no_prompt_survives_are_an_error(layer):
    before = layer.trace_count
    with pytest.raises(ValueError, match="no prompts"):
        layer.generate([], on_error="skip")
    with pytest.raises(ValueError, match="eos_token_id"):
        layer.generate(ROWS, eos_token_id=VOCAB, on_error="skip")
    with pytest.raises(ValueError, match="2 values for 3 prompts"):
        layer.generate(ROWS, max_new_tokens=[1, 2], on_error="skip")
    with pytest.raises(ValueError, match="2 negative prompts for 3 prompts"):
        layer.generate([[VOCAB], *ROWS[1:]], guidance_scale=1.5, negative_prompt=[[5], [6]], on_error="skip")
    with pytest.raises(ValueError, match="lists of the lengths"):
        layer.generate({"input_ids": [[5], []], "attention_mask": [[1]]}, on_error="skip")
    with pytest.raises(ValueError, match="without a guidance_scale"):
        layer.generate(ROWS, negative_prompt=[[5]], on_error="skip")
    assert layer.trace_count == before


@pytest.mark.filterwarnings("ignore:.* prompts have no answer")
def test_where_all_prompts_are_bad_nothing_runs(layer):
    before = layer.trace_count
    assert layer.generate(["", ""], on_error="skip") == [None, None] and layer.generate("", on_error="skip") == [None]
    out = layer.generate([[VOCAB], []], max_new_tokens=3, num_return_sequences=2, do_sample=True, on_error="skip")
    assert out["sequences"].shape == (4, 3) and np.isnan(out["scores"]).all() and layer.trace_count == before
    layer.check(["a", ""], on_error="skip")


@pytest.mark.filterwarnings("ignore:.* prompts have no answer")
@pytest.mark.parametrize(
    "broken", [[BROKEN], [BROKEN, 5], [5] * 20 + [BROKEN]], ids=["one token", "before the last", "a long one"]
)
def test_what_was_nan_reaches_no_later_call(layer, broken):
    good = made(layer.generate([[5]], max_new_tokens=20))
    layer.generate([broken], max_new_tokens=20, on_error="skip")
    assert made(layer.generate([[5]], max_new_tokens=20)) == good
    rows = [[5 + i % 20] for i in range(24)]
    expected = made(layer.generate(rows, eos_token_id=2, verbose=0))
    rows[3] = broken
    out = layer.generate(rows, eos_token_id=2, verbose=0, on_error="skip")
    assert np.flatnonzero(np.isnan(out["scores"])).tolist() == [3]
    assert made(out)[:3] + made(out)[4:] == expected[:3] + expected[4:]
    with pytest.raises(ValueError, match="logits are NaN"):
        layer.score([[*broken, 5, 6]])
    assert np.isfinite(layer.score([[5, 6, 7]])[0].logprobs).all()


@pytest.mark.filterwarnings("ignore:.* prompts have no answer")
@pytest.mark.parametrize(("beams", "rows"), [(1, [[5, BROKEN]]), (2, [[BROKEN], [6]])])
@pytest.mark.slow
def test_a_cache_that_grew_with_nan_in_it_reaches_no_later_call(growing, beams, rows):
    asked = dict(max_new_tokens=20, num_beams=beams, suppress_tokens=[BROKEN])
    good = made(growing.generate([[5], [6]][: len(rows)], **asked))
    growing.generate(rows, **{**asked, "max_new_tokens": 100 // beams}, on_error="skip")
    assert made(growing.generate([[5], [6]][: len(rows)], **asked)) == good


@pytest.mark.parametrize("many", [1, 24])
@pytest.mark.quick("1")
def test_nan_behind_the_end_of_an_answer_reaches_no_later_call(growing, many):
    """A token that ends an answer may have run before anybody looks for stop strings."""
    rows, asked = [[5 + i % 20] for i in range(many)], dict(max_new_tokens=20, verbose=0)
    good = made(growing.generate(rows, **asked))
    name = growing.tokenizer.decode([BROKEN])
    ended = made(growing.generate(rows, sequence_bias={(BROKEN,): 100.0}, stop_strings=[name], **asked))
    assert ended == [[BROKEN]] * many
    assert made(growing.generate(rows, **asked)) == good


def test_an_answer_that_is_finished_asks_for_no_next_token(model):
    layer = XLAGenerationLayer(model, tiny(without="{"), max_new_tokens=6, generation_config={}, pad_token_id=0)
    with pytest.warns(UserWarning, match=r"answers \[0\] ended before"):
        assert layer.generate(["a", "b"], regex=["a\\{", None], max_new_tokens=[1, 6])[0] == "a"


@pytest.mark.filterwarnings("ignore:.* prompts have no answer")
def test_rows_that_run_again_stop_at_their_strings(growing):
    """What a broken row makes at first is the first token or the last, and may end it."""
    rows = [[5 + i % 20] for i in range(24)]
    free = made(growing.generate(rows, max_new_tokens=60, verbose=0))
    names = growing.tokenizer.decode
    stops = [names([token]) for token in (free[0][3], free[5][30], 0, VOCAB - 1)]
    asked = dict(max_new_tokens=60, verbose=0, stop_strings=stops)
    expected = made(growing.generate(rows, **asked))
    assert any(len(row) < 60 for row in expected)
    rows[3] = [5] * 20 + [BROKEN]
    out = growing.generate(rows, on_error="skip", **asked)
    assert np.flatnonzero(np.isnan(out["scores"])).tolist() == [3]
    assert made(out)[:3] + made(out)[4:] == expected[:3] + expected[4:]


@pytest.mark.parametrize("skip", [{}, {"on_error": "skip"}], ids=["raise", "skip"])
def test_a_long_prompt_and_a_long_answer_that_fit_only_apart(layer, skip):
    rows, most = [[5] * 50, [6], [7] * 40], [4, 60, 9]
    alone = [made(layer.generate([row], max_new_tokens=n))[0] for row, n in zip(rows, most, strict=True)]
    assert made(layer.generate(rows, max_new_tokens=most, **skip)) == alone


def test_a_negative_prompt_needs_room_for_the_answer_of_its_own_prompt(model):
    layer, room = made_layer(model, None), model.max_positions
    asked = dict(guidance_scale=2.0, negative_prompt=[[7] * (room - 10), [8]], max_new_tokens=[10, room - 10])
    layer.check([[5], [6]], **asked)
    with pytest.raises(ValueError, match=rf"Negative prompt 0 has {room - 10} tokens.*max_new_tokens=11"):
        layer.check([[5], [6]], **{**asked, "max_new_tokens": [11, 5]})


@pytest.mark.slow
def test_a_grammar_that_no_token_can_follow_costs_no_other_answer(layer):
    layer = XLAGenerationLayer(layer.model, tiny(without="{"), max_new_tokens=6, generation_config={}, pad_token_id=0)
    for regex in ([r"\{", None, "y"], ["a\\{", None, "y"]):  # at once, and behind a token
        with pytest.raises(ValueError, match="An answer could not go on"):
            layer.generate(["a", "b", "c"], regex=regex)
        with pytest.warns(UserWarning, match="1 of 3 prompts have no answer. Prompt 0"):
            out = layer.generate(["a", "b", "c"], on_error="skip", regex=regex)
        assert out[0] is None and out[1] == layer.generate(["b"])[0] and out[2] == "y"
    with pytest.warns(UserWarning, match="1 of 1"):
        assert layer.generate(["a"], on_error="skip", regex=r"\{") == [None]


def test_what_a_stream_that_was_closed_leaves_is_not_nan(layer):
    good = made(layer.generate([[5]], max_new_tokens=20))
    stream = layer.stream([[BROKEN, *[5] * 20]], max_new_tokens=20)
    next(stream)
    stream.close()
    assert made(layer.generate([[5]], max_new_tokens=20)) == good


def test_a_prompt_whose_values_are_nan_is_not_saved(layer):
    with pytest.raises(ValueError, match=r"NaN for rows \[0\]"):
        layer.save_prompt([[5, BROKEN, 6, 7]])
    saved = layer.save_prompt([[5, 6, 7]])
    assert made(layer.generate([[5, 6, 7, 8]], reuse_prompt=saved)) == made(layer.generate([[5, 6, 7, 8]]))


@pytest.mark.parametrize("most", [[4, 500], [500, 4]])
def test_an_option_of_one_prompt_costs_no_other_its_answer(layer, most):
    with pytest.warns(UserWarning, match="1 of 2 prompts have no answer"):
        out = layer.generate([[5], [6]], max_new_tokens=most, on_error="skip")
    assert out["lengths"].tolist() == [n if n == 4 else 0 for n in most]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* prompts have no answer")
def test_each_prompt_keeps_what_is_its_own(layer):
    options = dict(guidance_scale=1.5, on_error="skip")
    alone = [
        made(layer.generate([row], negative_prompt=[[8 + i]], guidance_scale=1.5))[0] for i, row in enumerate(ROWS)
    ]
    for negative in ([[8], [9], [10]], np.array([[8], [9], [10]])):
        out = layer.generate([ROWS[0], [VOCAB], ROWS[2]], negative_prompt=negative, **options)
        assert made(out) == [alone[0], [], alone[2]]
    stops = [[" "], "a", "b"]
    assert layer.generate(["", "b", "c"], stop_strings=stops, on_error="skip")[1:] == layer.generate(
        ["b", "c"], stop_strings=[["a"], ["b"]]
    )
    with pytest.warns(UserWarning, match="Prompt 1 is a list; expected a string"):
        assert layer.generate(["a", [5, 6], "b"], on_error="skip") == [
            *layer.generate(["a"]),
            None,
            *layer.generate(["b"]),
        ]


def test_one_negative_prompt_for_all_is_read_for_each(layer, monkeypatch):
    """Else each check of several prompts would find another number of them, and look for the bad one."""
    checks, check = [], Generator.check
    monkeypatch.setattr(
        Generator, "check", lambda self, *args, **named: checks.append(1) or check(self, *args, **named)
    )
    options = dict(guidance_scale=1.5, negative_prompt=[[8]])
    plain = made(layer.generate(ROWS, **options))
    checks.clear()
    assert made(layer.generate(ROWS, on_error="skip", **options)) == plain
    assert len(checks) <= 3


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow has ragged tensors")
def test_ragged_tensors(layer):
    import tensorflow as tf

    for inputs in (tf.ragged.constant(ROWS), {"input_ids": tf.ragged.constant(ROWS)}):
        assert made(layer.generate(inputs, on_error="skip")) == made(layer.generate(ROWS))


def test_nothing_is_said_where_nothing_is_bad(layer, recwarn):
    assert made(layer.generate(ROWS, on_error="skip")) == made(layer.generate(ROWS))
    assert layer.generate("ab", on_error="skip") == layer.generate("ab")
    assert not [each for each in recwarn if "no answer" in str(each.message)]


def test_its_values_are_checked(layer):
    with pytest.raises(ValueError, match=r'on_error=\'ignore\'; expected "raise" or "skip"'):
        layer.generate(ROWS, on_error="ignore")
    with pytest.raises(ValueError, match="streamer"):
        layer.check(ROWS[:1], on_error="skip", streamer=object())
