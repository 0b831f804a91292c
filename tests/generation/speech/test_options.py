"""Options of a transcription are checked once, and say what is wrong."""

import numpy as np
import pytest

from keras_xla.generation.defaults import split_speech
from keras_xla.generation.speech.options import SpeechOptions


def test_what_may_be_written_in_several_ways_has_one():
    assert SpeechOptions(temperature=0).temperature == (0.0,)
    assert SpeechOptions(temperature=[0.0, 1]).temperature == (0.0, 1.0)
    assert SpeechOptions(language=["en", "de"]).language == ("en", "de")
    assert SpeechOptions(prompt_ids=np.array([1, 2])).prompt_ids == (1, 2)
    assert SpeechOptions(prompt_ids=None).prompt_ids == ()
    assert hash(SpeechOptions(language=["en"], temperature=[0.0], prompt_ids=[1]))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (dict(return_timestamps="word"), TypeError, "expected True, False or None"),
        (dict(return_timestamps=0), TypeError, "expected True, False or None"),
        (dict(condition_on_prev_tokens=1), TypeError, "expected True or False"),
        (dict(prompt_condition_type="first"), ValueError, "first-segment, all-segments"),
        (dict(prompt_condition_type="all-segments"), ValueError, "pass condition_on_prev_tokens=True"),
        (dict(initial_prompt=3), TypeError, "expected a string"),
        (dict(prompt_ids="Hi"), TypeError, "expected one list of token ids"),
        (dict(prompt_ids=[[1, 2]]), TypeError, "expected one list of token ids"),
        (dict(prompt_ids=[-1]), TypeError, "expected one list of token ids"),
        (dict(initial_prompt="Hi", prompt_ids=[1]), ValueError, "Pass one of them"),
        (dict(temperature=()), ValueError, "at least one"),
        (dict(temperature=-0.1), ValueError, "temperature=-0.1; expected a float from 0.0"),
        (dict(temperature=(0.0, float("inf"))), ValueError, "temperature=inf"),
        (dict(temperature="0"), TypeError, "expected a float"),
        (dict(compression_ratio_threshold=-1.0), ValueError, "compression_ratio_threshold"),
        (dict(logprob_threshold=0.5), ValueError, "logprob_threshold=0.5"),
        (dict(no_speech_threshold=1.5), ValueError, "from 0.0 to 1.0"),
        (dict(no_speech_threshold=True), TypeError, "expected a float"),
        (dict(max_new_tokens=0), ValueError, "at least 1"),
        (dict(max_new_tokens=1.5), TypeError, "expected an int"),
    ],
)
def test_bad_options_are_refused(options, error, text):
    with pytest.raises(error) as caught:
        SpeechOptions(**options)
    assert text in str(caught.value)


def test_one_prompt_replaces_the_other():
    options = SpeechOptions(initial_prompt="Hi").replace(prompt_ids=[1, 2])
    assert (options.initial_prompt, options.prompt_ids) == (None, (1, 2))
    assert options.replace(initial_prompt="Ho").prompt_ids == ()
    with pytest.raises(ValueError, match="Pass one of them"):
        options.replace(initial_prompt="Ho", prompt_ids=[1])
    for wrong in ({"initial_prompt": 3}, {"prompt_ids": 3}):
        with pytest.raises(TypeError, match=r"Received \w+=3; expected"):
            options.replace(**wrong)


def test_a_checkpoint_sets_defaults_and_its_false_for_timestamps_is_no_wish():
    generation = dict(return_timestamps=False, temperature=1.0, no_speech_threshold=0.6, eos_token_id=3, task=None)
    assert SpeechOptions.from_checkpoint(generation) == SpeechOptions(no_speech_threshold=0.6)
    assert SpeechOptions.from_checkpoint({"return_timestamps": True}).return_timestamps is True


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("return_timestamp", "Did you mean 'return_timestamps'?"),
        ("no_speech_treshold", "Did you mean 'no_speech_threshold'?"),
        ("return_token_timestamps", "times are those of segments, not of words"),
        ("monitor_progress", "Leave it out: transcripts come as a whole"),
        ("weather", "language"),
    ],
)
def test_unknown_options_of_speech_name_the_nearest(name, hint):
    with pytest.raises(TypeError) as caught:
        split_speech({name: True})
    assert f"unknown generation option {name!r}" in str(caught.value) and hint in str(caught.value)
