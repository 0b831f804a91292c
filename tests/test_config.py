"""Generation options: what is accepted, and what is said about the rest."""

import numpy as np
import pytest

from keras_xla.config import GenerationOptions, checkpoint_defaults, without_idle
from keras_xla.config.other_names import OF_TEXT
from keras_xla.generation.text.options import TEXT_FIELDS

BAD = [
    (dict(max_new_tokens=0), ValueError, "max_new_tokens=0; expected an int of at least 1"),
    (dict(max_new_tokens=-3), ValueError, "max_new_tokens=-3"),
    (dict(max_new_tokens=2.5), TypeError, "expected an int"),
    (dict(max_new_tokens=True), TypeError, "of type bool"),
    (dict(min_new_tokens=9, max_new_tokens=8), ValueError, "more than max_new_tokens=8"),
    (dict(do_sample=1), TypeError, "True or False"),
    (dict(do_sample=True, temperature=0), ValueError, "For greedy search pass do_sample=False"),
    (dict(do_sample=True, temperature=float("nan")), ValueError, "above 0"),
    (dict(do_sample=True, temperature="hot"), TypeError, "expected a float"),
    (dict(do_sample=True, top_p=1.5), ValueError, "top_p=1.5"),
    (dict(do_sample=True, top_k=-1), ValueError, "top_k=-1"),
    (dict(do_sample=True, min_p=1.1), ValueError, "min_p=1.1; expected a float from 0 to 1"),
    (dict(sequence_bias={(3,): float("inf")}), ValueError, "expected a float below infinity"),
    (dict(sequence_bias={(3,): float("nan")}), ValueError, "expected a float below infinity"),
    (dict(do_sample=True, seed=-1), ValueError, "seed=-1"),
    (dict(num_return_sequences=2), ValueError, "Pass do_sample=True"),
    (dict(eos_token_id=[1, "x"]), TypeError, "eos_token_id='x'"),
    (dict(temperature=0.7), ValueError, "do_sample=False, which would ignore that"),
    (dict(num_beams=0), ValueError, "num_beams=0; expected an int of at least 1"),
    (dict(num_beams=2, num_return_sequences=3), ValueError, "Pass num_beams=3 or more"),
    (dict(length_penalty=2.0), ValueError, "length_penalty=2.0 with num_beams=1, which would ignore that"),
    (dict(early_stopping="soon", num_beams=2), ValueError, 'expected True, False or "never"'),
    (dict(early_stopping=1, num_beams=2), ValueError, 'expected True, False or "never"'),
    (dict(min_length=9, min_new_tokens=3), ValueError, "min_length=9 with min_new_tokens=3, which would ignore that"),
    (dict(repetition_penalty=0.0), ValueError, "repetition_penalty=0.0; expected a float above 0"),
    (dict(no_repeat_ngram_size=-1), ValueError, "no_repeat_ngram_size=-1"),
    (dict(bad_words_ids=[3]), TypeError, "expected a list of lists of token ids"),
    (dict(bad_words_ids=[[]]), TypeError, "each of at least one"),
    (dict(bad_words_ids=[["bad"]]), TypeError, "bad_words_ids='bad'"),
    (dict(suppress_tokens=[-1]), ValueError, "suppress_tokens=-1"),
    (dict(temprature=0.7), TypeError, "Did you mean 'temperature'"),
    (dict(max_length=20), TypeError, "Use max_new_tokens"),
    (dict(stop=["."]), TypeError, "Use stop_strings"),
    (dict(stop_token_ids=[2]), TypeError, "Use eos_token_id"),
    (dict(revision="main"), TypeError, "huggingface_hub.snapshot_download"),
    (dict(load_in_8bit=True), TypeError, 'Use quantization="int8" of from_pretrained'),
    (dict(use_cache=True), TypeError, "Leave it out: there always is a cache"),
    (dict(attention_mask=[[1]]), TypeError, "layer.generate(inputs), with the mask in it"),
    (dict(chunk_length_s=30), TypeError, "Leave it out: long sound"),
    (dict(bos_token_id=1), TypeError, "Leave it out: the tokenizer puts it in front"),
    (dict(on_error="skip"), TypeError, "It is an argument of generate alone"),
    (dict(reuse_prompt=True), TypeError, "It is an argument of calls with prompts, such as generate and stream"),
    (dict(return_prompt=True), TypeError, "It is an argument of calls with prompts"),
    (dict(max_lenght=9), TypeError, "Use max_new_tokens"),
    (dict(top_h=0.3), TypeError, "keras_xla has nothing like it"),
    (dict(num_beam_groups=2), TypeError, "keras_xla has nothing like it"),
]


BAD += [
    ({"presence_penalty": 1e39}, ValueError, "presence_penalty=1e+39; expected a float within 3.4e+38"),
    ({"do_sample": True, "temperature": 10**400}, ValueError, "expected a float within 3.4e+38"),
]


@pytest.mark.parametrize(("values", "error", "text"), BAD, ids=[str(values) for values, *_ in BAD])
def test_bad_options_are_named_with_what_was_expected(values, error, text):
    with pytest.raises(error) as caught:
        GenerationOptions().replace(**values)
    assert text in str(caught.value)


def test_options_are_frozen_and_normalized():
    options = GenerationOptions().replace(do_sample=True, top_k=None, eos_token_id=[3, 4])
    assert options.top_k == 0 and options.eos_token_id == (3, 4)
    with pytest.raises(AttributeError):
        options.top_k = 5


def test_min_new_tokens_come_before_min_length():
    for least in (0, 3):
        assert GenerationOptions(min_length=9).replace(min_new_tokens=least).min_length == 0
    assert GenerationOptions(min_length=9).replace(min_new_tokens=None).min_length == 9
    assert GenerationOptions().replace(min_length=9, min_new_tokens=0).min_length == 9
    assert GenerationOptions(min_length=9, min_new_tokens=3).min_length == 0
    with pytest.raises(ValueError, match="min_length=9 with min_new_tokens=3"):
        GenerationOptions(min_new_tokens=3).replace(min_length=9)


def test_none_is_off():
    names = ("early_stopping", "renormalize_logits", "num_beams", "top_p", "stop_strings")
    names += ("do_sample", "temperature", "num_return_sequences")
    off = GenerationOptions(**dict.fromkeys(names))
    assert off == GenerationOptions()
    tuned = GenerationOptions(do_sample=True, temperature=0.3, top_p=0.9, max_new_tokens=7)
    # As people write it for Hugging Face, to undo what a checkpoint has tuned.
    greedy = tuned.replace(do_sample=False, temperature=None, top_p=None, max_new_tokens=None)
    assert (greedy.do_sample, greedy.temperature, greedy.top_p, greedy.max_new_tokens) == (False, 1.0, 1.0, 7)
    assert tuned.replace(temperature=[None, 0.5]).temperature == (1.0, 0.5)


def test_finished_rows_are_filled_with_the_pad_token_or_the_first_eos_or_zero():
    assert GenerationOptions(pad_token_id=9, eos_token_id=3).fill == 9
    assert GenerationOptions(eos_token_id=(3, 4)).fill == 3
    assert GenerationOptions().fill == 0


@pytest.mark.parametrize("ids", [[3, 4], (3, 4), range(3, 5), np.array([3, 4])], ids=lambda ids: type(ids).__name__)
def test_tokens_may_come_in_any_sequence(ids):
    options = GenerationOptions(eos_token_id=ids, suppress_tokens=ids)
    assert options.eos_token_id == options.suppress_tokens == (3, 4)
    assert GenerationOptions(eos_token_id=np.int64(3)).eos_token_id == (3,)


def test_a_checkpoints_defaults_are_taken_and_the_rest_that_matters_is_named():
    known, ignored = checkpoint_defaults(
        {
            "transformers_version": "5.0",
            "_from_model_config": True,
            "typical_p": 1.0,
            "do_sample": True,
            "temperature": 0.6,
            "repetition_penalty": 1.1,
            "diversity_penalty": 0.5,
            "eos_token_id": [1, 2],
            "bos_token_id": 1,
            "compile_config": {"mode": "default"},
            "prefill_chunk_size": 64,
            "assistant_early_exit": 4,
        }
    )
    assert known == {
        "do_sample": True,
        "temperature": 0.6,
        "typical_p": 1.0,
        "repetition_penalty": 1.1,
        "eos_token_id": [1, 2],
    }
    assert ignored == {"diversity_penalty": 0.5}


def test_options_of_modes_that_are_off_are_left_out():
    tuned = {"temperature": 0.6, "length_penalty": 2.0, "max_new_tokens": 8}
    assert without_idle(tuned) == {"max_new_tokens": 8}
    assert without_idle({**tuned, "do_sample": True, "num_beams": 4}) == {**tuned, "do_sample": True, "num_beams": 4}


def test_a_class_of_pydantic_is_its_schema():
    class Person:
        @classmethod
        def model_json_schema(cls):
            return {"type": "object", "properties": {"name": {"type": "string"}}}

    assert GenerationOptions(json_schema=Person).json_schema == Person.model_json_schema()
    assert GenerationOptions(json_schema=[Person, None]).json_schema == (Person.model_json_schema(), None)
    with pytest.raises(TypeError, match=r"expected a dict, a string of JSON or a class of Pydantic's"):
        GenerationOptions(json_schema=int)


def test_bools_of_numpy_are_bools():
    assert GenerationOptions(do_sample=np.True_).do_sample is True
    assert GenerationOptions(num_beams=2, early_stopping=np.True_).early_stopping is True
    with pytest.raises(TypeError, match="do_sample=1; expected True or False"):
        GenerationOptions(do_sample=1)


def test_every_option_of_texts_is_known_as_one_that_calls_take():
    assert set(OF_TEXT) == set(TEXT_FIELDS)
