"""Transcription does what transformers' Whisper does with the same model; and clip by clip the same in any batch."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from keras_xla.config import GenerationOptions
from keras_xla.generation.speech import transcriber as speech
from keras_xla.generation.speech.features import Features
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.tokens import SpeechTokens
from keras_xla.generation.speech.transcription_plan import languages_of
from keras_xla.models.layers.log_mel import LogMel
from tests import speech_reference as reference
from tests.speech_reference import EOS, FIRST, NO_SPEECH, NO_TIMESTAMPS, PREVIOUS, START, TorchSpeech, sound

WEIGHTS = [(3, 0.2), (3, 0.35), (2, 0.2)]
TOKENS = SpeechTokens.from_checkpoint(reference.GENERATION)
FEATURES = Features(LogMel(chunk_length=1))


def encode(text):
    return [ord(letter) % 40 for letter in text]


def decode(ids):
    return "".join(f" {i}" for i in ids)


class Spy(TorchSpeech):
    """The reference's model, which remembers what it was asked; `script` may replace its outcomes."""

    def __init__(self, weights=WEIGHTS[0], script=None):
        super().__init__(reference.torch_model(*weights))
        self.heard, self.asked, self.decoded, self.outcomes, self.script = [], [], [], [], script
        self.numbers = []

    def logits(self, prompts, hidden):
        self.heard.append([p.tolist() for p in prompts])
        return super().logits(prompts, hidden)

    def decode(self, prompts, hidden, options, timestamps, numbers):
        self.asked.append([p.tolist() for p in prompts])
        self.decoded.append((options, timestamps))
        self.numbers.append(list(numbers))
        call = len(self.asked) - 1
        made = super().decode if self.script is None else lambda prompts, *_: self.script(call, prompts)
        out = made(prompts, hidden, options, timestamps, numbers)
        self.outcomes.append(out)
        return out


def transcriber(model=None, batch_size=8, tokens=TOKENS):
    return speech.Transcriber(model or Spy(), tokens, FEATURES, encode, decode, batch_size)


@pytest.fixture(autouse=True)
def one_thread():
    """A tiny model has no work for more, and the reference is many times slower with them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class TestAgainstTheReference:
    @pytest.fixture(autouse=True)
    def every_rest_is_transcribed(self, monkeypatch):
        """As the reference does."""
        monkeypatch.setattr(speech, "_SHORTEST", 1)

    def compare(self, weights, **options):
        """Transcribe the same long clip with both; returns the number of segments."""
        clip = sound(4.3, seed=weights[0])
        theirs = {k: torch.tensor(v) if k == "prompt_ids" else v for k, v in options.items()}
        expected = reference.segments(reference.torch_model(*weights), clip, max_new_tokens=10, **theirs)
        expected = [segment for segment in expected if any(token < EOS for token in segment[2])]
        (made,) = transcriber(Spy(weights)).transcribe([clip], SpeechOptions(max_new_tokens=10, **options))
        assert [segment.tokens for segment in made.segments] == [tokens for *_, tokens in expected]
        for segment, (start, end, _) in zip(made.segments, expected, strict=True):
            # The reference rounds the end of a window down to a timestamp where none says it.
            assert (segment.start, segment.end) == (pytest.approx(start), pytest.approx(end, abs=0.041))
        return len(expected)

    @pytest.mark.parametrize("weights", WEIGHTS)
    @pytest.mark.parametrize(
        "options",
        [
            dict(),
            dict(language="German", task="translate"),
            dict(language="en", condition_on_prev_tokens=True),
            dict(language="en", prompt_ids=[PREVIOUS, 7, 8, 9]),
            dict(condition_on_prev_tokens=True, prompt_ids=[PREVIOUS, 7, 8, 9]),
            dict(
                condition_on_prev_tokens=True,
                prompt_ids=[PREVIOUS, 7, 8, 9],
                prompt_condition_type="all-segments",
            ),
        ],
        ids=lambda o: "-".join(map(str, o)) or "default",
    )
    @pytest.mark.quick("weights0", "default")
    def test_long_clips(self, weights, options):
        assert self.compare(weights, **options) > 4

    def test_a_checkpoint_that_forces_nothing_has_no_task_in_its_prompts(self, monkeypatch):
        said = {**reference.GENERATION, "forced_decoder_ids": None}
        monkeypatch.setattr(reference.torch_model(3, 0.2), "generation_config", GenerationConfig(**said))
        model = Spy((3, 0.2))
        expected = reference.segments(model.model, sound(2.3, seed=3), max_new_tokens=10)
        (made,) = transcriber(model, tokens=SpeechTokens.from_checkpoint(said)).transcribe(
            [sound(2.3, seed=3)], SpeechOptions(max_new_tokens=10)
        )
        words = [tokens for *_, tokens in expected if any(token < EOS for token in tokens)]
        assert [segment.tokens for segment in made.segments] == words
        assert all(len(prompt) == 2 for prompts in model.asked for prompt in prompts)

    @pytest.mark.parametrize("weights", WEIGHTS)
    @pytest.mark.parametrize("condition", [False, True])
    @pytest.mark.quick("weights1")
    def test_windows_without_speech_are_left_out(self, weights, condition):
        model = Spy(weights)
        options = dict(language="en", condition_on_prev_tokens=condition, temperature=0.0)
        clip = sound(4.3, seed=weights[0])
        transcriber(model).transcribe([clip], SpeechOptions(max_new_tokens=10, **options))
        # Thresholds between the windows' scores, so that some windows are left out and some are not.
        scores = sorted({float(out["scores"][0] / out["lengths"][0]) for out in model.outcomes})
        everything, left = self.compare(weights, **options), set()
        for low, high in itertools.pairwise(scores[:4]):
            middle = (low + high) / 2
            left.add(self.compare(weights, logprob_threshold=middle, no_speech_threshold=1e-4, **options))
        assert any(0 < some < everything for some in left)
        assert self.compare(weights, logprob_threshold=middle, no_speech_threshold=1.0, **options) == everything

    @pytest.mark.parametrize("weights", WEIGHTS)
    def test_short_clips_without_timestamps(self, weights):
        clips = [sound(0.3 + seed / 10, seed) for seed in range(8)]
        extractor = reference.WhisperFeatureExtractor(chunk_length=1)
        inputs = extractor(clips, sampling_rate=16000, return_tensors="pt").input_features
        expected = reference.torch_model(*weights).generate(inputs, language="fr", max_new_tokens=10).tolist()
        made = transcriber(Spy(weights)).transcribe(clips, SpeechOptions(language="fr", max_new_tokens=10))
        words = [" ".join(str(token) for token in row if token < EOS) for row in expected]
        # A random model makes timestamps even so, at pairs of which the reference cuts.
        plain = [i for i, row in enumerate(expected) if max(row) < FIRST]
        assert plain and [made[i].text for i in plain] == [words[i] for i in plain]

    def test_the_language_is_the_references(self):
        extractor = reference.WhisperFeatureExtractor(chunk_length=1)
        clips, found = [sound(1.0, seed) for seed in range(6)], set()
        for weights in WEIGHTS:
            inputs = extractor(clips, sampling_rate=16000, return_tensors="pt").input_features
            ids = reference.torch_model(*weights).detect_language(inputs).tolist()
            expected = [next(code for code, i in TOKENS.languages.items() if i == id_) for id_ in ids]
            made = transcriber(Spy(weights), batch_size=4).transcribe(clips, SpeechOptions(max_new_tokens=3))
            assert [transcript.language for transcript in made] == expected
            found |= set(expected)
        assert len(found) > 1


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "options",
    [SpeechOptions(max_new_tokens=10), SpeechOptions(max_new_tokens=10, condition_on_prev_tokens=True)],
    ids=["plain", "conditioned"],
)
@pytest.mark.quick("-3")
def test_a_batch_gives_each_clip_what_it_gets_alone(batch_size, options):
    clips = [sound(seconds, i) for i, seconds in enumerate([0.4, 3.3, 1.0, 1.2, 2.5])]
    alone = [transcriber().transcribe([clip], options)[0] for clip in clips]
    model = Spy()
    assert transcriber(model, batch_size).transcribe(clips, options) == alone
    assert [transcript.segments is None for transcript in alone] == [True, False, True, False, False]
    # Clips with and without timestamps are two batches; each keeps its size to the end.
    sizes = [shape[0] for shape in model.windows]
    assert sizes == sorted(sizes) and set(sizes) == {min(batch_size, 2), min(batch_size, 3)}


def timed(*pairs):
    """A script: each call makes the next of `pairs` (tokens, score) for every row."""

    def run(call, prompts):
        tokens, score = pairs[call]
        sequences = np.full((len(prompts), 12), EOS, "int32")
        sequences[:, : len(tokens)] = tokens
        return {
            "sequences": sequences,
            "lengths": np.full(len(prompts), len(tokens), "int32"),
            "scores": np.full(len(prompts), score * len(tokens), "float32"),
        }

    return run


GOOD = ([FIRST, 1, 2, FIRST + 20, EOS], -0.1)
UNLIKELY = ([FIRST, 3, 4, FIRST + 20, EOS], -3.0)
REPEATING = ([FIRST, *[7] * 10, FIRST + 20], -0.1)
ENDLESS = ([FIRST, 1, FIRST, FIRST], -0.1)


class TestFallback:
    OPTIONS = SpeechOptions(
        language="en",
        return_timestamps=True,
        temperature=(0.0, 0.4, 0.8),
        logprob_threshold=-1.0,
        compression_ratio_threshold=0.7,
        condition_on_prev_tokens=True,
    )

    def run(self, *outcomes, clip=None, **changes):
        model = Spy(script=timed(*outcomes))
        clip = sound(1.0) if clip is None else clip
        (made,) = transcriber(model).transcribe([clip], self.OPTIONS.replace(**changes), GenerationOptions(num_beams=1))
        return made, model

    def test_what_is_good_is_taken(self):
        made, model = self.run(GOOD)
        assert made.text == "1 2" and len(model.decoded) == 1
        assert not model.decoded[0][0].do_sample

    @pytest.mark.parametrize("bad", [UNLIKELY, REPEATING])
    def test_what_is_bad_is_made_again_and_warmer(self, bad):
        made, model = self.run(bad, GOOD)
        assert made.text == "1 2"
        (first, _), (second, _) = model.decoded
        assert not first.do_sample and second.do_sample and second.temperature == 0.4

    def test_each_window_of_a_clip_and_each_attempt_at_it_draws_anew(self):
        clips = [sound(2.3, seed) for seed in range(2)]
        model = Spy(script=timed(*[UNLIKELY] * 9))
        transcriber(model).transcribe(clips, self.OPTIONS.replace(temperature=(0.8, 0.8, 0.8)), first_clip=5)
        drawn = [number for numbers, asked in zip(model.numbers, model.asked, strict=True) for number in numbers]
        assert len(set(drawn)) == len(drawn) >= 2 * 3 * 2 and drawn[:2] == [5, 6]
        assert max(drawn) < 2**31
        again = Spy(script=timed(*[UNLIKELY] * 9))
        transcriber(again, batch_size=1).transcribe(clips[1:], self.OPTIONS.replace(temperature=(0.8,)), first_clip=6)
        assert {number for (number,) in again.numbers} <= set(drawn)

    def test_the_last_attempt_is_taken_whatever_it_is(self):
        made, model = self.run(UNLIKELY, REPEATING, UNLIKELY)
        assert made.text == "3 4" and [o.temperature for o, _ in model.decoded[1:]] == [0.4, 0.8]

    def test_only_rejected_rows_are_made_again(self):
        def script(call, prompts):
            good, bad = timed(GOOD)(0, prompts), timed(UNLIKELY)(0, prompts)
            first = call == 0
            return {name: np.stack([good[name][0], (bad if first else good)[name][1]]) for name in good}

        model = Spy(script=script)
        transcriber(model).transcribe([sound(1.0), sound(0.9)], self.OPTIONS)
        assert [[len(p) > 0 for p in asked] for asked in model.asked] == [[True, True], [False, True]]

    def test_silence_is_not_made_again(self):
        made, model = self.run(UNLIKELY, no_speech_threshold=1e-9)
        assert made.text == "" and made.segments == () and len(model.decoded) == 1

    def test_a_likely_outcome_is_no_silence_whatever_the_threshold(self):
        made, _ = self.run(GOOD, no_speech_threshold=1e-9)
        assert made.text == "1 2"

    def test_without_a_logprob_threshold_silence_needs_no_second_opinion(self):
        made, _ = self.run(GOOD, no_speech_threshold=1e-9, logprob_threshold=None)
        assert made.text == ""

    def test_what_was_made_warm_is_no_context(self):
        window = ([FIRST, 1, 2, FIRST + 25, FIRST + 25, 3], -0.1)
        _, cool = self.run(window, GOOD, clip=sound(1.3))
        _, warm = self.run(UNLIKELY, UNLIKELY, window, GOOD, clip=sound(1.3))
        start = TOKENS.prompt("en", "transcribe", True)
        assert cool.asked[-1] == [[PREVIOUS, FIRST, 1, 2, FIRST + 25, *start]]
        assert warm.asked[-1] == [start]

    @pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0])
    def test_beams_are_for_the_cold_attempt_only_and_judged_by_their_mean(self, length_penalty):
        (tokens, score), decoding = UNLIKELY, GenerationOptions(num_beams=3, length_penalty=length_penalty)
        # The script makes `score * len(tokens)` of it: a beam's score, whose mean for each token is `score`.
        beam = (tokens, score * len(tokens) ** -length_penalty)
        for threshold, attempts in ((score + 0.1, [3, 1]), (score - 0.1, [3])):
            model = Spy(script=timed(beam, GOOD))
            options = self.OPTIONS.replace(logprob_threshold=threshold, compression_ratio_threshold=None)
            transcriber(model).transcribe([sound(1.0)], options, decoding)
            assert [options.num_beams for options, _ in model.decoded] == attempts


def test_a_window_that_leads_nowhere_ends_all_the_same():
    model = Spy(script=timed(*[ENDLESS] * 3))
    transcriber(model).transcribe([sound(2.5)], SpeechOptions(language="en"))
    assert len(model.asked) == 3


def test_a_rest_without_room_for_a_word_is_not_transcribed():
    outcome = ([FIRST, 1, FIRST + 25, FIRST + 25], -0.1)
    for seconds, windows in ((0.55, 1), (0.65, 2), (0.05, 1)):
        model = Spy(script=timed(outcome, GOOD))
        transcriber(model).transcribe([sound(seconds)], SpeechOptions(language="en", return_timestamps=True))
        assert len(model.asked) == windows


class TestPrompts:
    def prompt(self, clip=None, tokens=TOKENS, **options):
        model = Spy(script=timed(GOOD))
        transcriber(model, tokens=tokens).transcribe([sound(0.5) if clip is None else clip], SpeechOptions(**options))
        return model.asked[0][0]

    def test_it_says_language_task_and_whether_there_are_timestamps(self):
        assert self.prompt(language="de") == [START, 43, 46, NO_TIMESTAMPS]
        assert self.prompt(language="de", task="translate", return_timestamps=True) == [START, 43, 45]

    def test_what_a_call_says_takes_the_place_of_all_that_the_checkpoint_forces(self):
        """As in Hugging Face's `generate`: a language or a task in the call leaves `forced_decoder_ids` out."""
        forced = dataclasses.replace(TOKENS, language="de", task="translate")
        assert self.prompt(tokens=forced) == [START, 43, 45, NO_TIMESTAMPS]
        assert self.prompt(tokens=forced, language="de") == [START, 43, 46, NO_TIMESTAMPS]
        assert languages_of(SpeechOptions(task="translate"), forced, 2) == (None, None)  # the model finds them out
        assert languages_of(SpeechOptions(), forced, 2) == ("de", "de")

    def test_an_english_only_model_is_told_neither(self):
        english = SpeechTokens(START, EOS, NO_TIMESTAMPS)
        assert self.prompt(tokens=english) == self.prompt(tokens=english, language="en") == [START, NO_TIMESTAMPS]
        assert self.prompt(tokens=english, return_timestamps=True) == [START]

    def test_an_initial_prompt_stands_before_it(self):
        assert self.prompt(language="en", initial_prompt=" Hi ")[:5] == [PREVIOUS, *encode(" Hi"), START]
        for ids in ([7, 8], [PREVIOUS, 7, 8], np.array([PREVIOUS, 7, 8])):
            assert self.prompt(language="en", prompt_ids=ids)[:4] == [PREVIOUS, 7, 8, START]

    def test_each_clip_may_have_a_language_of_its_own(self):
        model = Spy(script=timed(GOOD, GOOD, GOOD))
        clips = [sound(0.5), sound(1.5), sound(0.6)]
        made = transcriber(model).transcribe(clips, SpeechOptions(language=["en", "fr", "de"]))
        assert [transcript.language for transcript in made] == ["en", "fr", "de"]
        assert [[p[1] for p in asked] for asked in model.asked] == [[42, 43], [44], [44]]

    def test_silence_is_judged_after_the_start_token(self):
        model = Spy(script=timed(GOOD))
        options = SpeechOptions(language="en", prompt_ids=[7], no_speech_threshold=0.9)
        transcriber(model).transcribe([sound(0.5)], options)
        assert model.heard == [[[PREVIOUS, 7, START]]]
        assert TOKENS.no_speech == NO_SPEECH


def test_a_part_of_a_frame_makes_no_clip_longer_than_a_window():
    options, noise = SpeechOptions(language="en", return_timestamps=False), sound(1.1)
    model = Spy(script=timed(GOOD))
    transcriber(model).transcribe([noise[: 16000 + 159]], options)
    assert len(model.windows) == 1
    with pytest.raises(ValueError, match="Clip 0 is longer than the 1 s"):
        transcriber(model).transcribe([noise[: 16000 + 160]], options)


def test_as_many_tokens_as_fit_are_made_unless_told_otherwise():
    def most(**options):
        model = Spy(script=timed(GOOD))
        transcriber(model).transcribe([sound(0.5)], SpeechOptions(language="en", **options))
        return model.decoded[0][0].max_new_tokens, model.decoded[0][0].eos_token_id

    assert most() == (40 - 4, (EOS,))
    assert most(prompt_ids=[7, 8]) == (40 - 4 - 3, (EOS,))
    assert most(condition_on_prev_tokens=True, prompt_ids=[7, 8]) == (40 - 4 - 3, (EOS,))  # one window has no history
    told = dict(condition_on_prev_tokens=True, return_timestamps=True)
    assert most(prompt_ids=[7, 8], **told) == (40 - 3 - 1 - 19, (EOS,))
    assert most(max_new_tokens=30, **told) == (30, (EOS,))
    everywhere = dict(told, prompt_condition_type="all-segments")
    assert most(prompt_ids=[7] * 10, **everywhere) == (40 - 3 - 1 - 19, (EOS,))  # it takes of what was said before
    assert most(prompt_ids=[7] * 19, **everywhere) == (40 - 3 - 1 - 19 - 1, (EOS,))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(return_timestamps=False), "Clip 1 is longer than the 1 s"),
        (dict(language="Klingon"), "this model knows de, en, fr"),
        (dict(language="it"), "this model knows de, en, fr"),
        (dict(language=["en"]), "1 languages for 2 clips"),
        (dict(task="summarize"), "expected one of transcribe, translate"),
        (dict(prompt_ids=range(20)), "a prompt of 20 tokens; the model has room for 19"),
        (dict(max_new_tokens=38), "Pass max_new_tokens=36 or less"),
        (dict(initial_prompt="x", max_new_tokens=36), "Pass max_new_tokens=33 or less"),
        (dict(condition_on_prev_tokens=True, max_new_tokens=36), "Pass max_new_tokens=35 or less"),
        (dict(prompt_ids=[7] * 9, condition_on_prev_tokens=True, max_new_tokens=30), "Pass max_new_tokens=26 or less"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(options, text):
    model = Spy()
    if "prompt_ids" in options:
        options["prompt_ids"] = list(options["prompt_ids"])
    with pytest.raises(ValueError) as caught:
        transcriber(model).transcribe([sound(0.5), sound(1.5)], SpeechOptions(**options))
    assert text in str(caught.value) and not model.windows


def test_more_of_what_cannot_be():
    english, bare = SpeechTokens(START, EOS, NO_TIMESTAMPS), dataclasses.replace(TOKENS, previous=None)
    for tokens, options, message in (
        (english, dict(language="fr"), "knows English only"),
        (english, dict(task="translate"), "can only transcribe"),
        (bare, dict(prompt_ids=[1]), "no prev_sot_token_id"),
        (bare, dict(condition_on_prev_tokens=True), "no prev_sot_token_id"),
    ):
        with pytest.raises(ValueError, match=message):
            transcriber(tokens=tokens).transcribe([sound(0.5)], SpeechOptions(**options))
    with pytest.raises(ValueError, match="holds the special tokens"):
        ours = speech.Transcriber(Spy(), TOKENS, FEATURES, lambda text: [1, START], decode)
        ours.transcribe([sound(0.5)], SpeechOptions(initial_prompt="<|startoftranscript|>"))
    with pytest.raises(ValueError, match="one transcript"):
        options = GenerationOptions(num_return_sequences=2, do_sample=True)
        transcriber().transcribe([sound(0.5)], SpeechOptions(), options)
    with pytest.raises(ValueError, match="no clips"):
        transcriber().transcribe([])
