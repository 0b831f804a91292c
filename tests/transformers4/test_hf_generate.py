"""`keras_xla.jit(model.generate)`: transformers 4's own TensorFlow generate under XLA, prompts in buckets."""

import numpy as np
import pytest
import transformers

import keras_xla
from keras_xla.functions.hf_generate import _Prompt
from tests.transformers4.models import PROMPTS, VOCAB, live, speech, theirs

OPTIONS = dict(max_new_tokens=6, do_sample=False)


def padded(prompts, side="left", dtype="int32"):
    ids = np.zeros((len(prompts), max(map(len, prompts))), dtype)
    for row, prompt in zip(ids, prompts, strict=True):
        row[slice(-len(prompt), None) if side == "left" else slice(len(prompt))] = prompt
    return {"input_ids": ids, "attention_mask": (ids > 0).astype(dtype)}


@pytest.fixture(scope="module")
def model():
    return live("gpt2", n_layer=1)


@pytest.fixture(scope="module")
def generate(model):
    return keras_xla.jit(model.generate)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.quick("int64-left", "int64-right", "int32-right")
def test_tokens_are_those_of_eager_generate_and_the_prompt_comes_back_as_it_was(model, generate, side, dtype):
    batch = padded(PROMPTS, side, dtype)
    out = generate(**batch, **OPTIONS).numpy()
    assert out.dtype == np.int32 and out.shape == (3, 7 + 6)
    assert (out[:, :7] == batch["input_ids"]).all()
    assert out[:, 7:].tolist() == theirs(model)


@pytest.mark.parametrize("variant", ["opt", "mistral"])
def test_other_classes_too(variant):
    model = live(variant, num_hidden_layers=1)
    out = keras_xla.jit(model.generate)(**padded(PROMPTS), **OPTIONS)
    assert out.numpy()[:, 7:].tolist() == theirs(model)


@pytest.mark.parametrize("variant", ["t5", "bart"])
@pytest.mark.slow
def test_an_encoders_inputs_are_padded_behind(variant):
    model = live(variant)
    generate = keras_xla.jit(model.generate)
    out = generate(**padded(PROMPTS, "right", "int64"), **OPTIONS).numpy()
    assert out.shape == (3, 1 + 6) and out[:, 1:].tolist() == theirs(model)
    generate(np.full((3, 40), 5), **OPTIONS)
    assert generate.trace_count == 2
    if variant == "bart":
        with pytest.raises(ValueError, match="prompt of 65 tokens; the model has 64 positions"):
            generate(np.full((1, 65), 5), **OPTIONS)


def test_what_the_decoder_begins_with_is_no_prompt_to_pad_whatever_its_shape():
    """Not run: in a graph, transformers 4 cannot begin with more than a token."""
    generate, ids, begun = keras_xla.jit(live("t5").generate), np.array([[5, 6, 7, 1]]), np.array([[0, 8, 9, 4]])
    tensors = {"input_ids": ids, "decoder_input_ids": begun, "head": ids}
    made = generate._padded(tensors, _Prompt(ids, np.ones((1, 4), bool), rows=2, length=8))
    assert made["decoder_input_ids"].tolist() == [[0, 8, 9, 4]] * 2
    assert made["head"].tolist() == [[5, 6, 7, 1, 0, 0, 0, 0]] * 2


@pytest.mark.slow
def test_none_switches_off_what_the_models_settings_have():
    model = live("bart")
    model.generation_config.forced_bos_token_id = 9
    given, generate = dict(input_ids=np.full((1, 5), 7), **OPTIONS), keras_xla.jit(model.generate)
    for options in ({}, {"forced_bos_token_id": None}):
        expected = model.generate(**given, **options).numpy()
        np.testing.assert_array_equal(generate(**given, **options), expected)
    assert generate(**given)[0, 1] == 9 != expected[0, 1]


@pytest.mark.slow
def test_speech_has_one_shape():
    model, features = live("whisper"), speech()
    expected = theirs(model, features)  # first: it writes into the model's settings
    generate = keras_xla.jit(model.generate)
    assert generate(features, **OPTIONS).numpy()[:, 1:].tolist() == expected
    generate(input_features=features * 2, **OPTIONS)
    assert generate.trace_count == 1


def test_one_executable_for_each_bucket(model, new_events, caplog):
    generate, rng = keras_xla.jit(model.generate), np.random.default_rng(0)
    for length in (1, 5, 31, 32, 33, 40, 64, 7):
        ids = rng.integers(3, VOCAB, (2, length))
        assert generate(ids, **OPTIONS).shape == (2, length + 6)
    assert generate.trace_count == 2
    generate(ids, **{**OPTIONS, "max_new_tokens": 7})
    _, second, third = new_events("function")
    assert "input_ids']: (2, 64) int32" in second.shapes and "(2, 32) -> (2, 64)" in second.cause
    assert "max_new_tokens']: 6 -> 7" in third.cause
    assert "right-padding" not in caplog.text  # there is none, but their graph always logs it


def test_buckets_of_the_length_and_the_batch(model):
    generate = keras_xla.jit(model.generate, buckets={"input_ids": {0: (4,), 1: (8, 16)}}, on_recompile="raise")
    for rows in (1, 3, 4):
        out = generate(**padded(PROMPTS[:1] * rows), **OPTIONS).numpy()
        assert out.shape == (rows, 3 + 6) and out[-1, 3:].tolist() == theirs(model)[0]
    assert generate.trace_count == 1
    with pytest.raises(keras_xla.RecompileError, match=r"\(4, 8\) -> \(4, 16\)"):
        generate(np.full((1, 9), 5), **OPTIONS)
    with pytest.raises(ValueError, match="largest bucket is 16"):
        generate(np.full((1, 17), 5), **OPTIONS)


def test_rows_that_fill_a_bucket_are_in_none_of_the_outputs(model):
    generate = keras_xla.jit(model.generate, buckets={"input_ids": {0: (4,), 1: (8,)}})
    asked = {**OPTIONS, "num_beams": 2, "return_dict_in_generate": True, "output_scores": True}
    out = generate(**padded(PROMPTS[:1] * 3), **asked)
    assert len(out["sequences"]) == len(out["sequences_scores"]) == 3


def test_pad_tokens_are_padding_without_a_mask_as_in_eager_generate(model, generate):
    ids = padded([[5, 6, 7], [8]])["input_ids"]
    assert generate(ids, **OPTIONS).numpy().tolist() == model.generate(ids, **OPTIONS).numpy().tolist()


def test_new_weights_are_used_without_compiling_again(model):
    model = live("gpt2", n_layer=1)
    generate = keras_xla.jit(model.generate)
    before = generate(**padded(PROMPTS), **OPTIONS).numpy()
    for variable in model.weights:
        variable.assign(variable + np.random.default_rng(1).normal(size=variable.shape) * 0.2)
    after = generate(**padded(PROMPTS), **OPTIONS).numpy()
    assert after[:, 7:].tolist() == theirs(model) and (after != before).any()
    assert generate.trace_count == 1


def test_processors_of_a_list_count_as_they_are_now(model, generate):
    class Only(transformers.TFLogitsProcessor):
        def __init__(self, token):
            self.token = token

        def __call__(self, input_ids, scores, cur_len):
            return scores + 1e4 * np.eye(VOCAB, dtype="float32")[self.token]

    processors = transformers.TFLogitsProcessorList([Only(5)])
    for token in (5, 9):
        processors[0] = Only(token)
        made = generate(np.array([PROMPTS[0]]), logits_processor=processors, **OPTIONS).numpy()
        assert set(made[0, len(PROMPTS[0]) :]) == {token}
    traces = generate.trace_count
    generate(np.array([PROMPTS[0]]), logits_processor=transformers.TFLogitsProcessorList(processors), **OPTIONS)
    assert generate.trace_count == traces  # of the same processor


def test_variables_that_take_the_place_of_others_count():
    model = live("gpt2", n_layer=1)
    generate = keras_xla.jit(model.generate)
    before = generate(np.array([PROMPTS[0]]), **OPTIONS).numpy()
    model.resize_token_embeddings(VOCAB + 8)
    table = model.get_input_embeddings().weights[0]
    table.assign(np.random.default_rng(1).normal(size=table.shape))
    ids = np.array([PROMPTS[0]], "int32")
    made = generate(ids, **OPTIONS).numpy()
    assert made.tolist() == model.generate(ids, **OPTIONS).numpy().tolist() != before.tolist()
    assert generate.trace_count == 2


def test_rows_that_ended_are_filled_up(model, generate):
    expected = theirs(model)
    end = expected[0][2]
    out = generate(**padded(PROMPTS), **OPTIONS, eos_token_id=end, pad_token_id=0).numpy()[:, 7:].tolist()
    assert out == [[*row[: row.index(end) + 1], *[0] * (5 - row.index(end))] if end in row else row for row in expected]


def test_beams_and_repetition_penalty_see_no_padding(model, generate):
    options = {**OPTIONS, "repetition_penalty": 1.7, "pad_token_id": None}
    for more in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        expected = model.generate(np.array([PROMPTS[0]], "int32"), **options, **more).numpy()
        out = generate(np.array([PROMPTS[0]]), **options, **more).numpy()
        assert out[:, : expected.shape[1]].tolist() == expected.tolist()


def test_sampling_takes_seeds_as_tensors(model):
    generate = keras_xla.jit(model.generate)
    options = dict(max_new_tokens=6, do_sample=True, temperature=2.0)
    made = [generate(**padded(PROMPTS), **options, seed=[1, seed]).numpy().tolist() for seed in (0, 1, 0)]
    assert made[0] == made[2] != made[1]
    assert generate.trace_count == 1


def test_a_dict_comes_back_whole(model):
    out = keras_xla.jit(model.generate)(**padded(PROMPTS), **OPTIONS, return_dict_in_generate=True)
    assert out.sequences.numpy()[:, 7:].tolist() == theirs(model)


def test_the_models_settings_count_and_may_change(model):
    model = live("gpt2", n_layer=1)
    generate = keras_xla.jit(model.generate)
    model.generation_config.max_new_tokens = 3
    assert generate(**padded(PROMPTS)).shape == (3, 10)
    model.generation_config.max_new_tokens = 4
    assert generate(**padded(PROMPTS)).shape == (3, 11)
    config = transformers.GenerationConfig(max_new_tokens=2, pad_token_id=0)
    assert generate(**padded(PROMPTS), generation_config=config).shape == (3, 9)


def test_max_length_counts_the_prompt_as_passed(model, generate):
    with pytest.warns(UserWarning, match="Pass max_new_tokens"):
        out = keras_xla.jit(model.generate)(**padded(PROMPTS), max_length=10, do_sample=False)
    assert out.numpy()[:, 7:].tolist() == theirs(model, new=3)
    with pytest.raises(ValueError, match=r"7 columns with max_length=7.*max_new_tokens"):
        generate(**padded(PROMPTS), max_length=7)


def test_min_length_counts_the_prompt_as_passed(model, generate):
    end = theirs(model)[0][0]
    ids = np.array([PROMPTS[0]], "int32")
    options = {**OPTIONS, "eos_token_id": end, "pad_token_id": 0, "min_length": 5}
    expected = model.generate(ids, **options).numpy().tolist()[0]
    assert generate(ids, **options).numpy().tolist()[0][: len(expected)] == expected


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [5, 6]}, r"shape \(2,\).*\(batch, length\)"),
        ({"input_ids": [[5.0]]}, "dtype float64.*expects integers"),
        ({"input_ids": [[5, VOCAB]]}, f"token id {VOCAB}; it expects ids from 0 to {VOCAB - 1}"),
        ({"input_ids": [[5, 6]], "attention_mask": [[1]]}, r"attention_mask of shape \(1, 1\).*\(1, 2\)"),
        ({"input_ids": [[5], [6]], "attention_mask": [[1], [0]]}, "empty prompt in row 1"),
        ({"input_ids": [[5] * 125]}, "125 tokens for 6 new ones; the model has 128 positions"),
        ({"inputs": [[5]], "input_ids": [[5]]}, "`inputs` and `input_ids`"),
    ],
)
def test_wrong_prompts(generate, inputs, message):
    with pytest.raises(ValueError, match=message):
        generate(**{name: np.array(value) for name, value in inputs.items()}, **OPTIONS)
