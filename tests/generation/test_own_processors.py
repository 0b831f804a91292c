"""A user's own functions on logits: compiled in once, tensors changed between calls, equal to PyTorch's generate."""

import keras
import numpy as np
import pytest
import torch
import transformers
from keras import ops

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests import reference
from tests.engine.prices import check_always

VARIANT, VOCAB, NEW = "llama-tied-gqa", 97, 8
ROWS = [[5, 6, 7], [8, 9, 10, 11, 12]]
ZEROS = np.zeros((VOCAB,), "float32")


def bias(tokens, logits, step, *, values=ZEROS, strength=1.0):
    return logits + strength * values


@keras.saving.register_keras_serializable("tests")
def not_twice(tokens, logits, step):
    """Nothing of a row comes again, prompt included."""
    seen = ops.any(tokens[:, :, None] == ops.arange(logits.shape[-1], dtype="int32"), axis=1)
    return ops.where(seen, -float("inf"), logits)


def third_is_five(tokens, logits, step):
    five = ops.arange(logits.shape[-1]) == 5
    return ops.where(ops.logical_and(step == 2, ops.logical_not(five)[None]), -1e9, logits)


@pytest.fixture(scope="module")
def model(checkpoint):
    return load_model(open_checkpoint(checkpoint(VARIANT)))


def layer_of(model, *functions):
    return XLAGenerationLayer(
        model,
        max_new_tokens=NEW,
        generation_config={},
        pad_token_id=0,
        cache_buckets=(32,),
        logits_processors=functions,
    )


@pytest.fixture(scope="module")
def layer(model):
    return layer_of(model, bias, not_twice)


class Theirs(transformers.LogitsProcessor):
    def __init__(self, values, twice):
        self.values, self.twice = values, twice

    def __call__(self, input_ids, scores):
        scores = scores + torch.tensor(self.values)
        return scores if self.twice else scores.scatter(1, input_ids, -float("inf"))


def expected(row, values, twice, **options):
    processors = transformers.LogitsProcessorList([Theirs(values, twice)])
    return reference.generate(VARIANT, row, max_new_tokens=NEW, logits_processor=processors, **options)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"repetition_penalty": 1.5}], ids=str)
@pytest.mark.parametrize("twice", [False, True])
def test_tokens_are_those_of_the_same_processor_in_pytorch(layer, options, twice):
    values = np.random.default_rng(0).normal(0, 3, VOCAB).astype("float32")
    ours = {"bias": {"values": values}, **({"not_twice": None} if twice else {})}
    out = layer.generate(ROWS, processor_options=ours, **options)["sequences"].tolist()
    assert out == [expected(row, values, twice, **options) for row in ROWS]


def test_other_tensors_compile_nothing(layer):
    layer.generate(ROWS)
    before, plain = layer.trace_count, layer.generate(ROWS)["sequences"].tolist()
    values = np.eye(1, VOCAB, 50, dtype="float32")[0] * 1000
    made = layer.generate(ROWS, processor_options={"bias": {"values": values}, "not_twice": None})
    assert (made["sequences"] == 50).all()
    for off in ({"bias": {"values": values, "strength": 0}}, {"bias": None}):
        assert layer.generate(ROWS, processor_options=off)["sequences"].tolist() == plain
    assert layer.trace_count == before


def test_steps_count_new_tokens(model):
    made = layer_of(model, third_is_five).generate(ROWS)["sequences"]
    assert (made[:, 2] == 5).all() and not (made[:, [0, 1, 3]] == 5).all()


@pytest.mark.parametrize(
    "how",
    [
        dict(prompt_lookup_num_tokens=4),
        dict(assistant=True),
        dict(prompt_lookup_num_tokens=4, do_sample=True, seed=3),
    ],
    ids=str,
)
@pytest.mark.slow
def test_guesses_change_nothing(model, how, monkeypatch):
    check_always(monkeypatch)
    layer = layer_of(model, bias, not_twice, third_is_five)
    how = {**how, "assistant": layer_of(model)} if "assistant" in how else how
    rows = [[5, 6, 7, 5, 6], [8, 9, 8, 9, 8]]
    values = {"bias": {"values": np.random.default_rng(1).normal(0, 3, VOCAB).astype("float32")}, "not_twice": None}
    draws = {name: how[name] for name in ("do_sample", "seed") if name in how}
    plain = layer.generate(rows, processor_options=values, **draws)
    made = layer.generate(rows, processor_options=values, **how)
    np.testing.assert_array_equal(made["sequences"], plain["sequences"])
    assert (made["sequences"][:, 2] == 5).all()


@pytest.mark.slow
def test_in_a_long_list_each_row_is_as_if_alone(model):
    """Rows that take the place of others are at another step than those beside them."""
    layer = layer_of(model, not_twice, third_is_five)
    rows = [[6 + i % 40, 50 + i % 7] for i in range(80)]
    how = dict(max_new_tokens=[3 + i % 6 for i in range(80)], verbose=0)
    alone = [layer.generate([row], max_new_tokens=3 + i % 6)["sequences"][0].tolist() for i, row in enumerate(rows)]
    out = layer.generate(rows, **how)
    assert [row[:n].tolist() for row, n in zip(out["sequences"], out["lengths"], strict=True)] == alone


def test_with_guidance_they_change_the_guided_scores(model):
    layer = layer_of(model, third_is_five)
    made = layer.generate(ROWS, guidance_scale=1.5)["sequences"]
    assert (made[:, 2] == 5).all()


@pytest.mark.slow
def test_processors_are_saved_with_the_layer(model, tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    layer = layer_of(model, not_twice)
    pipeline = keras.Model(inputs, layer(inputs))
    ids = np.array([[5, 6, 7]], "int32")
    before = pipeline.predict(ids, verbose=0)["sequences"]
    assert len(set(before[0].tolist()) | {5, 6, 7}) == NEW + 3
    pipeline.save(tmp_path / "p.keras")
    again = keras.saving.load_model(tmp_path / "p.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0)["sequences"], before)


def wrong_shape(tokens, logits, step):
    return logits[:, :5]


@pytest.mark.parametrize(
    ("functions", "error", "text"),
    [
        ([3], TypeError, "logits processor 3"),
        ([lambda tokens, logits: logits], TypeError, r"expected a function \(tokens, logits, step\)"),
        ([lambda tokens, logits, step, *, scale: logits], TypeError, "with defaults"),
        ([bias, bias], ValueError, "two logits processors called 'bias'"),
        ([lambda tokens, logits, step, *, name="x": logits], TypeError, "an array of numbers"),
    ],
    ids=["no function", "two arguments", "no default", "twice", "no number"],
)
def test_bad_functions(model, functions, error, text):
    with pytest.raises(error, match=text):
        layer_of(model, *functions)


@pytest.mark.slow
def test_a_generator_of_functions_is_read_once(model, checkpoint):
    plain = layer_of(model).generate(ROWS)["sequences"]
    expected = layer_of(model, third_is_five).generate(ROWS)["sequences"]
    given = dict(max_new_tokens=NEW, generation_config={}, pad_token_id=0, cache_buckets=(32,))
    made = XLAGenerationLayer.from_pretrained(
        checkpoint(VARIANT), logits_processors=(each for each in [third_is_five]), verbose=0, **given
    )
    np.testing.assert_array_equal(made.generate(ROWS)["sequences"], expected)
    assert (plain != expected).any()
    none = XLAGenerationLayer(model, logits_processors=None, **given)
    np.testing.assert_array_equal(none.generate(ROWS)["sequences"], plain)


@pytest.mark.parametrize("given", [third_is_five, "third_is_five", 3], ids=["function", "name", "number"])
def test_processors_come_in_a_list(model, given):
    with pytest.raises(TypeError, match=r"Received logits_processors=.*; expected a list of functions"):
        XLAGenerationLayer(model, max_new_tokens=NEW, logits_processors=given)


def no_number(tokens, logits, step):
    bad = ops.logical_and(ops.any(tokens == 5, axis=1, keepdims=True), step == 1)
    return ops.where(bad, ops.log(-ops.ones_like(logits)), logits)


@pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"num_beams": 2}], ids=str)
@pytest.mark.slow
def test_a_processor_that_makes_nan(model, options):
    layer = layer_of(model, no_number)
    with pytest.raises(ValueError, match=r"for rows \[1\], .* a logits processor returns NaN"):
        layer.generate([[6, 7], [5, 8]], **options)
    made = layer.generate([[6, 7], [5, 8]], on_error="skip", **options)
    assert np.isnan(made["scores"]).tolist() == [False, True]


@pytest.mark.slow
def test_a_processor_that_makes_nan_of_some_tokens(model):
    layer = layer_of(model, lambda tokens, logits, step: ops.where(ops.arange(logits.shape[-1]) == 3, np.nan, logits))
    with pytest.raises(ValueError, match="a logits processor returns NaN"):
        layer.generate([[6, 5]])


def test_a_processor_that_changes_the_shape(model):
    with pytest.raises(ValueError, match=r"'wrong_shape' returned the shape \(1, 5\)"):
        layer_of(model, wrong_shape).generate([[5, 6]])


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"biass": {}}, ValueError, "the layer's logits_processors: bias, not_twice"),
        ({bias: {}}, ValueError, "Received processor_options for <function bias"),
        ({"bias": {"value": 1, 3: 4}}, ValueError, "Received value, 3 for the logits processor 'bias'"),
        ({"bias": {"value": 1}}, ValueError, "its tensors: values, strength"),
        ({"bias": {"values": np.zeros(3)}}, ValueError, r"shape \(3,\)"),
        ({"bias": 3}, TypeError, "processor_options"),
        ({"bias": {"strength": "much"}}, TypeError, "bias.strength"),
        ({"bias": {"strength": 3_000_000_000}}, ValueError, "bias.strength=3000000000 .* fit into int32"),
        ({"bias": {"strength": np.uint32(4e9)}}, ValueError, "fit into int32"),
    ],
)
def test_bad_options(layer, given, error, text):
    before = layer.trace_count
    with pytest.raises(error, match=text):
        layer.generate(ROWS, processor_options=given)
    assert layer.trace_count == before
