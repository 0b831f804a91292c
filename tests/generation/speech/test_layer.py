"""The layer with a speech model: files, arrays and features; in a Keras model; bad audio before anything compiles."""

import json
import shutil

import keras
import ml_dtypes
import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperFeatureExtractor

from keras_xla import XLAGenerationLayer
from keras_xla.config import GenerationOptions
from keras_xla.generation.defaults import resolve
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.transcription_plan import attempts_of
from tests import speech_reference as reference
from tests.speech_reference import EOS, RATE, sound

tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="jax has no string tensors")


class Numbers:
    """A tokenizer whose words are the ids."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids, skip_special_tokens=False, **_):
        return "".join(f" {i}" for i in ids if i < EOS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    reference.torch_model().save_pretrained(path)
    return path


@pytest.fixture
def layer(folder):
    return XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), max_new_tokens=8, language="en")


def features(clips):
    extractor = WhisperFeatureExtractor(chunk_length=1)
    return extractor(clips, sampling_rate=RATE, return_tensors="np")["input_features"]


@pytest.mark.slow
def test_features_give_the_references_tokens_greedy_and_with_beams(layer):
    inputs = features([sound(0.9, seed) for seed in range(3)])
    for beams in (1, 3):
        out = layer.generate({"input_features": inputs}, num_beams=beams)
        for i in range(3):
            how = dict(language="en", max_new_tokens=8, num_beams=beams, do_sample=False)
            with torch.no_grad():
                expected = reference.torch_model().generate(torch.tensor(inputs[i : i + 1]), **how)[0].tolist()
            made = out["sequences"][i, : out["lengths"][i]].tolist()
            made = made[:-1] if made[-1] == EOS else made
            assert made == [token for token in expected if token < EOS]


@pytest.mark.slow
def test_each_batch_of_predict_draws_on(folder):
    """A seed gives the same numbers in each `generate`, and other ones in each batch of a graph, as for text."""
    drawn = dict(do_sample=True, temperature=3.0, top_k=0, seed=1)
    layer = XLAGenerationLayer.from_pretrained(
        folder, tokenizer=Numbers(), max_new_tokens=8, language="en", batch_buckets=[1], **drawn
    )
    two = {"input_features": np.repeat(features([sound(0.9)]), 2, axis=0)}
    entry = {"input_features": keras.Input(two["input_features"].shape[1:], name="input_features")}
    first, second = keras.Model(entry, layer(entry)).predict(two, batch_size=1, verbose=0)["sequences"]
    assert (first != second).any()
    assert (layer.generate(two)["sequences"] == layer.generate(two)["sequences"]).all()


@tensorflow_only
@pytest.mark.slow
def test_each_batch_of_clips_draws_on(folder):
    drawn = dict(do_sample=True, temperature=3.0, top_k=0, seed=1)
    layer = XLAGenerationLayer.from_pretrained(
        folder, tokenizer=Numbers(), max_new_tokens=8, language="en", sampling_rate=RATE, **drawn
    )
    clips = np.stack([sound(0.9)] * 2)[:, :, None]
    model = keras.Sequential([keras.Input(clips.shape[1:]), layer])
    first, second = model.predict(clips, batch_size=1, verbose=0)
    assert first != second


@pytest.mark.slow
def test_greedy_search_comes_before_the_temperatures_of_the_layer(folder):
    layer = XLAGenerationLayer.from_pretrained(
        folder, tokenizer=Numbers(), max_new_tokens=8, language="en", temperature=(0.7, 0.9)
    )
    made = {str(layer.generate(sound(0.9), sampling_rate=RATE, do_sample=False)) for _ in range(3)}
    plain = XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), max_new_tokens=8, language="en")
    assert made == {str(plain.generate(sound(0.9), sampling_rate=RATE))}
    with pytest.raises(ValueError, match=r"do_sample=False with temperature=0\.7; above 0, tokens are drawn"):
        layer.generate(sound(0.9), sampling_rate=RATE, do_sample=False, temperature=0.7)


@pytest.mark.parametrize(
    "options", [{}, dict(do_sample=True, temperature=2.0, top_k=0, seed=1)], ids=["greedy", "drawn"]
)
@pytest.mark.slow
def test_more_features_than_a_batch_has_room_for_run_one_batch_after_the_other(layer, folder, options, new_events):
    inputs = {"input_features": features([sound(0.9, seed) for seed in range(5)])}
    whole = layer.generate(inputs, num_return_sequences=2 if options else 1, **options)
    small = XLAGenerationLayer.from_pretrained(
        folder, tokenizer=Numbers(), max_new_tokens=8, language="en", batch_buckets=[4]
    )
    parts = small.generate(inputs, num_return_sequences=2 if options else 1, **options)
    for name in ("sequences", "lengths"):
        np.testing.assert_array_equal(parts[name], whole[name])
    np.testing.assert_allclose(parts["scores"], whole["scores"], rtol=1e-4)
    assert {event.cause for event in new_events("generate")} == {
        "first call"
    }  # the last, smaller batch compiles nothing


@pytest.mark.slow
def test_features_have_as_many_tokens_as_the_checkpoint_says(folder):
    layer, inputs = XLAGenerationLayer.from_pretrained(folder, language="en"), features([sound(0.9)])
    out = layer.generate({"input_features": inputs})
    with torch.no_grad():
        expected = reference.torch_model().generate(torch.tensor(inputs), language="en", do_sample=False)[0].tolist()
    assert out["sequences"].shape == (1, reference.POSITIONS - 4)  # 4 tokens begin it
    made = out["sequences"][0, : out["lengths"][0]].tolist()
    assert [token for token in made if token < EOS] == [token for token in expected if token < EOS]
    stored = {**reference.GENERATION, "max_new_tokens": 6}
    for asked, most in ({}, 6), (dict(max_new_tokens=9), 9):
        found = resolve(stored, asked, True, reference.POSITIONS)
        assert (found.options.max_new_tokens, found.speech.max_new_tokens) == (most, asked.get("max_new_tokens"))
    for length, most in ((7, 7), (reference.POSITIONS, reference.POSITIONS - 4), (9999, reference.POSITIONS - 4)):
        found = resolve({**reference.GENERATION, "max_length": length}, {}, True, reference.POSITIONS)
        assert found.options.max_new_tokens == most


@pytest.mark.slow
def test_features_may_be_bfloat16(layer):
    inputs = features([sound(0.9)])
    expected = layer.generate({"input_features": inputs.astype(ml_dtypes.bfloat16).astype("float32")})
    made = layer.generate({"input_features": inputs.astype(ml_dtypes.bfloat16)})
    np.testing.assert_array_equal(made["sequences"], expected["sequences"])


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("preprocessor_config.json", dict(n_fft=512, hop_length=160), "has n_fft=512; expected n_fft=400"),
        ("processor_config.json", dict(feature_extractor=dict(sampling_rate=8000)), "has sampling_rate=8000; expected"),
    ],
)
def test_features_that_are_not_whispers_are_refused(folder, tmp_path, name, content, told):
    path = shutil.copytree(folder, tmp_path / "whisper")
    (path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{name} {told}"):
        XLAGenerationLayer.from_pretrained(path, tokenizer=Numbers())


def test_whispers_own_features_are_taken(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "whisper")
    WhisperFeatureExtractor(chunk_length=1).save_pretrained(path)
    assert XLAGenerationLayer.from_pretrained(path, tokenizer=Numbers(), language="en") is not None


def test_who_draws_has_no_beams_as_in_transformers():
    drawn = GenerationOptions(do_sample=True, num_beams=3)
    assert [each.num_beams for each in attempts_of(SpeechOptions(), drawn)] == [1]
    beams = GenerationOptions(num_beams=3)
    assert [each.num_beams for each in attempts_of(SpeechOptions(), beams)] == [3]
    assert [each.num_beams for each in attempts_of(SpeechOptions(temperature=(0.0, 0.4)), beams)] == [3, 1]


def test_only_who_asks_for_draws_gets_them():
    """Hugging Face's Whisper goes by the call's temperature, whatever the checkpoint says."""
    stored = {**reference.GENERATION, "do_sample": True, "temperature": 0.7}
    assert not resolve(stored, {}, True, reference.POSITIONS).options.do_sample
    drawn = resolve(stored, dict(do_sample=True), True, reference.POSITIONS).options
    assert drawn.do_sample and drawn.temperature == 0.7


@pytest.mark.slow
def test_features_are_sampled_with_a_temperature(layer):
    inputs = {"input_features": features([sound(0.9, 0)])}
    drawn = [
        layer.generate(inputs, do_sample=True, temperature=2.0, seed=i, top_k=0)["sequences"].tolist() for i in (1, 2)
    ]
    assert drawn[0] != drawn[1]
    np.testing.assert_array_equal(
        layer.generate(inputs, initial_prompt=None)["sequences"], layer.generate(inputs)["sequences"]
    )


@pytest.mark.quick_on_jax
def test_a_temperature_of_a_call_comes_before_those_of_the_layer(folder):
    options = dict(tokenizer=Numbers(), max_new_tokens=8, language="en", temperature=0.0)
    greedy = XLAGenerationLayer.from_pretrained(folder, **options)
    call = dict(sampling_rate=RATE, do_sample=True, temperature=2.0, top_k=0)
    assert len({str(greedy.generate(sound(0.9), seed=i, **call)[0]) for i in range(4)}) > 1


@pytest.mark.slow
def test_what_is_drawn_for_a_clip_does_not_depend_on_the_batch_size(layer):
    clips, options = [sound(0.9), sound(0.5, 1), sound(0.9)], dict(do_sample=True, temperature=2.0, top_k=0, seed=1)
    whole, *parts = (
        [str(each) for each in layer.generate(clips, sampling_rate=RATE, batch_size=size, **options)]
        for size in (4, 1, 2)
    )
    assert parts == [whole, whole] and whole[0] != whole[2]  # each clip has draws of its own


@pytest.mark.slow
def test_a_layer_with_small_batch_buckets_transcribes(folder):
    small = XLAGenerationLayer.from_pretrained(
        folder, tokenizer=Numbers(), max_new_tokens=8, language="en", batch_buckets=[1]
    )
    clips = [sound(0.9, seed) for seed in range(2)]
    assert len(small.generate(clips, sampling_rate=RATE)) == 2


@pytest.mark.quick_on_jax
@pytest.mark.slow
def test_the_spoken_language_is_detected(layer, folder):
    inputs = features([sound(0.9, seed) for seed in range(4)])
    other = XLAGenerationLayer.from_pretrained(folder, max_new_tokens=8)
    out = other.generate({"input_features": inputs})
    found = reference.torch_model().detect_language(torch.tensor(inputs)).tolist()
    names = {i: name for name, i in reference.GENERATION["lang_to_id"].items()}
    for i, language in enumerate(found):
        alone = other.generate({"input_features": inputs[i : i + 1]}, language=names[language])
        np.testing.assert_array_equal(out["sequences"][i], alone["sequences"][0])


@pytest.mark.slow
def test_files_arrays_and_dicts_say_the_same(layer, tmp_path):
    clip = sound(0.8)
    soundfile.write(tmp_path / "clip.wav", clip, RATE, subtype="FLOAT")
    transcripts = [
        *layer.generate(str(tmp_path / "clip.wav")),
        *layer.generate(clip, sampling_rate=RATE),
        *layer.generate({"array": clip, "sampling_rate": RATE}),
        *layer.generate(np.stack([clip, clip], 1), sampling_rate=RATE),
    ]
    assert len({str(transcript) for transcript in transcripts}) == 1 and str(transcripts[0])
    # The features, the encoder, what the decoder keeps of it, its prompt, and the tokens.
    assert layer.trace_count == 5


@tensorflow_only
@pytest.mark.slow
def test_a_model_from_audio_to_text(layer, folder):
    layer.sampling_rate = RATE
    audio = keras.Input((RATE,))
    model = keras.Model(audio, layer(audio))
    clips = np.stack([sound(1.0, seed) for seed in range(3)])
    said = [text.decode() for text in model.predict(clips, verbose=0)]
    assert said == [str(transcript) for transcript in layer.generate(clips)]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a dataset calls the layer in TensorFlow's graph")
@pytest.mark.parametrize("shape", [(RATE,), (RATE, 2)], ids=["mono", "stereo"])
@pytest.mark.slow
def test_clips_of_a_dataset_one_by_one(layer, shape):
    import tensorflow as tf

    layer.sampling_rate = RATE
    clips = np.stack([np.resize(sound(1.0, seed)[:, None], shape).reshape(shape) for seed in range(2)])
    said = list(tf.data.Dataset.from_tensor_slices(clips).map(layer).as_numpy_iterator())
    assert said == [[str(layer.generate(clip)[0]).encode()] for clip in clips]


@pytest.mark.quick_on_jax
@pytest.mark.slow
def test_a_model_from_features_to_tokens_survives_saving(layer, tmp_path):
    inputs = features([sound(0.9, seed) for seed in range(2)])
    entry = {"input_features": keras.Input(inputs.shape[1:], name="input_features")}
    layer.tokenizer = None
    model = keras.Model(entry, layer(entry))
    out = model.predict({"input_features": inputs}, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict({"input_features": inputs}, verbose=0)["sequences"], out["sequences"])


@pytest.mark.quick_on_jax
def test_a_layer_of_another_layers_model_has_the_special_tokens_of_the_checkpoint(layer):
    other = XLAGenerationLayer(layer.model, layer.tokenizer, 8, language="en", sampling_rate=RATE)
    assert other.generate(sound(0.9)) == layer.generate(sound(0.9), sampling_rate=RATE)


def test_a_layer_made_of_its_config_transcribes_with_the_same_options(folder):
    stored = {**reference.GENERATION, "no_speech_threshold": 0.6}
    drawn = dict(do_sample=True, temperature=0.7)
    for options in ({}, drawn, dict(no_speech_threshold=None), dict(max_new_tokens=5, temperature=(0.0, 0.2))):
        layer = XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), generation_config=stored, **options)
        again = XLAGenerationLayer.from_config(layer.get_config())
        assert (again._speech.defaults, again.options) == (layer._speech.defaults, layer.options)
        assert again._speech.defaults.max_new_tokens == options.get("max_new_tokens")  # None: all that fit


@pytest.mark.parametrize(
    ("inputs", "options", "error", "text"),
    [
        (np.zeros((0,), "float32"), dict(sampling_rate=RATE), ValueError, "Clip 0"),
        (np.full((RATE,), np.nan, "float32"), dict(sampling_rate=RATE), ValueError, "NaN"),
        (np.zeros((RATE, 3), "float32"), dict(sampling_rate=RATE), ValueError, "3 channels"),
        (np.zeros((RATE,), "float32"), {}, ValueError, "sampling_rate=16000"),
        (np.zeros((RATE,), "int64"), dict(sampling_rate=RATE), TypeError, "int64"),
        ("missing.wav", {}, FileNotFoundError, "missing.wav"),
        (__file__, {}, ValueError, "no audio"),
        ({"input_features": np.zeros((1, 80, 3), "float32")}, {}, ValueError, "expected (batch, 80, 100)"),
        (
            {"input_features": np.zeros((1, 80, 100), "float32"), "decoder_input_ids": [[1]]},
            {},
            ValueError,
            "'decoder_input_ids' beside 'input_features'",
        ),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, language="xx"), ValueError, "knows de, en, fr"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, batch_size=0), ValueError, "batch_size=0"),
        ({"input_features": np.zeros((1, 80, 100), "float32")}, dict(initial_prompt="a"), ValueError, "initial_prompt"),
        ({"input_features": np.zeros((1, 80, 100), "float32")}, dict(max_new_tokens=10_000), ValueError, "10000"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, verbose=1), ValueError, "verbose with speech"),
        (
            {"input_features": np.zeros((3, 80, 100), "float32")},
            dict(language=["en", "de"]),
            ValueError,
            "2 languages for 3 clips",
        ),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, num_beams=0), ValueError, "num_beams=0"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, num_beams=99), ValueError, "num_beams=99"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, tempo=2), TypeError, "'tempo'"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, stop_strings="a"), ValueError, "ends with its clip"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, regex="a"), ValueError, "regex with speech"),
        (
            np.zeros((RATE,), "float32"),
            dict(sampling_rate=RATE, seed=[1], do_sample=True),
            ValueError,
            "not as a list",
        ),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, guidance_scale=2.0), ValueError, "guidance_scale=2.0"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, output_logprobs=True), ValueError, "output_logprobs"),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE, prompt_lookup_num_tokens=4), ValueError, "with speech"),
        (
            np.zeros((RATE,), "float32"),
            dict(sampling_rate=RATE, encoder_no_repeat_ngram_size=2),
            ValueError,
            "no tokens",
        ),
    ],
)
def test_bad_audio_and_options_raise_before_anything_compiles(inputs, options, error, text, layer, new_events):
    with pytest.raises(error) as caught:
        layer.generate(inputs, **options)
    assert text in str(caught.value)
    assert not new_events() and layer.trace_count == 0


def test_none_says_nothing_of_what_is_spoken_and_what_to_do(folder):
    layer = XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), max_new_tokens=8)
    stored = dict(layer.model.generation_config, language="<|de|>", task="translate", forced_decoder_ids=None)
    layer = XLAGenerationLayer(layer.model, Numbers(), 8, generation_config=stored, language=None, sampling_rate=RATE)
    plain = layer.generate(sound(0.9))
    assert plain[0].language == "de"
    asked = dict(language=None, task=None, condition_on_prev_tokens=None, prompt_condition_type=None)
    assert layer.generate(sound(0.9), **asked) == plain != layer.generate(sound(0.9), language="fr")


def test_what_no_bucket_holds_raises_before_the_encoder_compiles(folder, new_events):
    small = dict(batch_buckets=[1, 2], cache_buckets=[16], max_new_tokens=30, language="en")
    layer = XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), **small)
    silence = {"input_features": np.zeros((1, 80, 100), "float32")}
    for inputs, options in (
        (silence, {}),
        (np.zeros((RATE,), "float32"), dict(sampling_rate=RATE)),
        (silence, dict(max_new_tokens=2, do_sample=True, temperature=1.0, num_return_sequences=4)),
        # The first window has room, and the next one, which is told of the first, has none.
        (np.zeros((2 * RATE,), "float32"), dict(sampling_rate=RATE, max_new_tokens=8, condition_on_prev_tokens=True)),
    ):
        with pytest.raises(ValueError, match="bucket"):
            layer.generate(inputs, **options)
    assert not new_events() and layer.trace_count == 0


@pytest.mark.slow
def test_after_a_warmup_with_a_prompt_others_of_any_length_compile_nothing(folder):
    options = dict(language="en", max_new_tokens=8, no_speech_threshold=0.6, cache_buckets=(16, 32, 64))
    layer = XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), on_recompile="raise", **options)
    layer.warmup(1, initial_prompt="7")
    for words in (1, 19):
        layer.generate(sound(0.9), sampling_rate=RATE, initial_prompt=" ".join(["7"] * words))


@pytest.mark.slow
def test_a_warmup_for_beams_and_temperatures_covers_the_draws_too(folder):
    options = dict(num_beams=2, temperature=(0.0, 0.4), logprob_threshold=-0.01)
    layer = XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), language="en", on_recompile="raise")
    layer.warmup(verbose=0, **options)
    assert layer.generate(sound(0.9, 1), sampling_rate=RATE, **options)


@pytest.mark.slow
def test_options_of_drawing_hold_for_the_temperatures_above_0(folder):
    rejected = dict(temperature=(0.0, 0.9), logprob_threshold=-0.01)  # at 0: so it is drawn
    layers = [
        XLAGenerationLayer.from_pretrained(folder, tokenizer=Numbers(), language="en", **options)
        for options in ({}, rejected, dict(rejected, seed=1))
    ]

    def said(layer, **options):
        return str(layers[layer].generate(sound(0.9, 1), sampling_rate=RATE, **options)[0])

    greedy, drawn = said(0), said(0, seed=1, **rejected)
    assert drawn != greedy
    for made in (said(0, seed=1, do_sample=True, **rejected), said(1, seed=1), said(2)):
        assert made == drawn
    assert said(0, seed=1, top_k=1, **rejected) == greedy
    # do_sample without temperatures in the call comes before those of the layer
    assert said(1, do_sample=True, seed=3) == said(0, do_sample=True, seed=3) != greedy


@pytest.mark.parametrize("name", ["eos_token_id", "decoder_start_token_id"])
def test_a_transcript_begins_and_ends_as_the_model_was_trained_to(name, layer, new_events):
    with pytest.raises(ValueError, match=f"Received {name} with speech"):
        layer.generate(sound(0.9), sampling_rate=RATE, **{name: 7})
    assert not new_events()
