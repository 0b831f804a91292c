"""The special tokens of real checkpoints, old and new, of one language and of many."""

import types
import warnings

import pytest

from keras_xla.generation.defaults import stored_options
from keras_xla.generation.speech.tokens import SpeechTokens

ENGLISH = dict(  # openai/whisper-tiny.en
    decoder_start_token_id=50257,
    eos_token_id=50256,
    no_timestamps_token_id=50362,
    forced_decoder_ids=[[1, 50362]],
    is_multilingual=False,
    prev_sot_token_id=50360,
    max_initial_timestamp_index=50,
)
MULTILINGUAL = dict(  # openai/whisper-tiny, some of its languages
    decoder_start_token_id=50258,
    eos_token_id=50257,
    no_timestamps_token_id=50363,
    forced_decoder_ids=[[1, None], [2, 50359]],
    is_multilingual=True,
    lang_to_id={"<|en|>": 50259, "<|zh|>": 50260, "<|de|>": 50261},
    task_to_id={"transcribe": 50359, "translate": 50358},
    prev_sot_token_id=50361,
)


def test_an_english_only_checkpoint():
    tokens = SpeechTokens.from_checkpoint(ENGLISH)
    assert (tokens.start, tokens.eos, tokens.previous) == (50257, 50256, 50360)
    assert (tokens.no_speech, tokens.no_timestamps, tokens.first_timestamp) == (50361, 50362, 50363)
    assert tokens.max_initial_timestamp_index == 50
    assert tokens.prompt(None, "transcribe", False) == [50257, 50362]
    assert tokens.prompt(None, "transcribe", True) == [50257]


def test_a_multilingual_checkpoint():
    tokens = SpeechTokens.from_checkpoint(MULTILINGUAL)
    assert (tokens.language, tokens.task, tokens.languages["de"]) == (None, "transcribe", 50261)
    assert tokens.prompt("de", "translate", True) == [50258, 50261, 50358]
    assert tokens.prompt("en", "transcribe", False) == [50258, 50259, 50359, 50363]


def test_a_fine_tuned_checkpoint_keeps_its_language_and_task():
    forced = {**MULTILINGUAL, "forced_decoder_ids": [[1, 50261], [2, 50358], [3, 50363]]}
    tokens = SpeechTokens.from_checkpoint(forced)
    assert (tokens.language, tokens.task) == ("de", "translate")


def test_an_old_checkpoint_without_tables_says_what_it_is_forced_to():
    old = {k: v for k, v in MULTILINGUAL.items() if k not in ("lang_to_id", "task_to_id", "is_multilingual")}
    old = {**old, "prev_sot_token_id": None, "suppress_tokens": [1, 2, 50361, 50362]}
    forced = [[1, 50261], [2, 50359], [3, 50363]]
    tokens = SpeechTokens.from_checkpoint({**old, "forced_decoder_ids": forced})
    assert tokens.previous == 50361
    assert tokens.prompt(None, "transcribe", False) == [50258, 50261, 50359, 50363]
    assert tokens.prompt(None, "transcribe", True) == [50258, 50261, 50359]


@pytest.mark.parametrize(
    ("forced", "language", "task"),
    [
        ([[1, 50261], [2, 50358]], "de", "translate"),
        ([[1, None], [2, 50358], [3, 50363]], None, "translate"),
        ([[1, 50261], [2, None], [3, 50363]], "de", None),
        ([[1, 50261]], "de", None),
        ([[2, 50358]], None, None),  # in transformers, what does not begin with position 1 does not count
    ],
)
def test_a_language_and_a_task_that_are_forced(forced, language, task):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens = SpeechTokens.from_checkpoint({**MULTILINGUAL, "forced_decoder_ids": forced})
    assert (tokens.language, tokens.task) == (language, task)


@pytest.mark.parametrize(
    "forced", [[[1, 50270], [2, 50359]], [[1, 50359], [2, 50363]], [[1, 50261], [2, 9], [3, 8]], [[1, 50363]]]
)
def test_other_tokens_that_are_forced_are_told(forced):
    with pytest.warns(UserWarning, match="completions will differ from Hugging Face's. Pass language=... and task="):
        SpeechTokens.from_checkpoint({**MULTILINGUAL, "forced_decoder_ids": forced})


def test_what_is_asked_for_of_a_checkpoint_that_only_forces_is_refused():
    old = dict(decoder_start_token_id=50258, eos_token_id=50257, no_timestamps_token_id=50363)
    tokens = SpeechTokens.from_checkpoint({**old, "forced_decoder_ids": [[1, 50261], [2, 50358], [3, 50363]]})
    for ask in (lambda: tokens.language_code("en"), lambda: tokens.check_task("transcribe")):
        with pytest.raises(ValueError, match=r"has no lang_to_id and task_to_id.*with the tokens \[50261, 50358\]"):
            ask()


def test_what_is_missing_is_named():
    broken = {k: v for k, v in ENGLISH.items() if k != "no_timestamps_token_id"}
    with pytest.raises(ValueError, match="lacks no_timestamps_token_id"):
        SpeechTokens.from_checkpoint(broken)
    tokens = SpeechTokens.from_checkpoint(dict(decoder_start_token_id=7, eos_token_id=[8, 9], no_timestamps_token_id=3))
    assert (tokens.start, tokens.eos) == (7, 8)


def test_what_config_json_forces_is_the_default_where_generation_config_json_says_nothing():
    forced = [[1, 50261], [2, 50358], [3, 50363]]
    said = {**MULTILINGUAL, "forced_decoder_ids": None}

    def defaults(stored, **model_config):
        checkpoint = types.SimpleNamespace(generation_config=stored, config={"forced_decoder_ids": forced})
        return stored_options(checkpoint, types.SimpleNamespace(**model_config))

    tokens = SpeechTokens.from_checkpoint(defaults(said, num_mel_bins=80))
    assert (tokens.language, tokens.task) == ("de", "translate")
    tokens = SpeechTokens.from_checkpoint(defaults({**said, "language": "<|en|>"}, num_mel_bins=80))
    assert (tokens.language, tokens.task) == (None, None)  # as Hugging Face: one of them is named
    assert SpeechTokens.from_checkpoint(defaults(MULTILINGUAL, num_mel_bins=80)).language is None
    assert "forced_decoder_ids" not in defaults({"max_length": 9})  # of text


@pytest.mark.parametrize("language", ["de", "DE", "German", "german", "<|de|>"])
def test_a_language_has_many_names(language):
    assert SpeechTokens.from_checkpoint(MULTILINGUAL).language_code(language) == "de"


def test_languages_that_a_model_does_not_know_are_refused():
    many, one = SpeechTokens.from_checkpoint(MULTILINGUAL), SpeechTokens.from_checkpoint(ENGLISH)
    assert many.language_code("Mandarin") == "zh" and one.language_code("English") == "en"
    for language in ("French", "xx", ""):
        with pytest.raises(ValueError, match="this model knows de, en, zh"):
            many.language_code(language)
        with pytest.raises(ValueError, match="knows English only"):
            one.language_code(language)
    with pytest.raises(TypeError, match="expected a string"):
        many.language_code(3)


def test_tasks_that_a_model_does_not_have_are_refused():
    many, one = SpeechTokens.from_checkpoint(MULTILINGUAL), SpeechTokens.from_checkpoint(ENGLISH)
    many.check_task("translate")
    one.check_task("transcribe")
    with pytest.raises(ValueError, match="can only transcribe"):
        one.check_task("translate")
    with pytest.raises(ValueError, match="expected one of transcribe, translate"):
        many.check_task("diarize")
