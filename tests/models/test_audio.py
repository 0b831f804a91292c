"""Log-mel features equal those of transformers.WhisperFeatureExtractor, compiled or not."""

import keras
import numpy as np
import pytest
from keras import ops
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from keras_xla import backend
from keras_xla.models.layers.log_mel import LogMel, mel_filters, scale

RATE = 16000


def expected(rows, mel_bins=80, chunk_length=30):
    extractor = WhisperFeatureExtractor(feature_size=mel_bins, chunk_length=chunk_length)
    return extractor(list(rows), sampling_rate=RATE, return_tensors="np").input_features


def speechlike(samples, seed=0):
    """A hum with harmonics that swells and falls over a noise floor, and a pause of digital silence."""
    time = np.arange(samples) / RATE
    pitch = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 0.7 * time)) / RATE
    voice = sum(np.sin(k * pitch) / k for k in range(1, 20)) * np.sin(2 * np.pi * 2.1 * time) ** 2
    audio = 0.2 * voice + 1e-3 * np.random.default_rng(seed).normal(size=samples)
    audio[samples // 3 : samples // 3 + samples // 20] = 0.0
    return audio.astype("float32")


@pytest.mark.parametrize("mel_bins", [80, 128])
def test_mel_filters_are_the_references(mel_bins):
    reference = mel_filter_bank(201, mel_bins, 0.0, 8000.0, RATE, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(mel_bins), reference, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("mel_bins", [80, 128])
@pytest.mark.parametrize("samples", [1, 159, 161, 5 * RATE + 77, 30 * RATE])
def test_features_equal_the_reference(mel_bins, samples):
    audio = speechlike(max(samples, 100))[None, :samples]
    features = LogMel(mel_bins)(ops.convert_to_tensor(audio))
    assert features.shape == (1, mel_bins, 3000)
    np.testing.assert_allclose(features, expected(audio, mel_bins), atol=1e-4)


def test_compiled_features_equal_the_reference_and_compile_once_a_shape():
    layer, traces = LogMel(), []

    def features(audio):
        traces.append(audio.shape)
        return layer(audio)

    compiled = backend.jit(features, [])
    for seed in range(3):
        audio = np.stack([speechlike(3 * RATE, seed), speechlike(3 * RATE, seed + 10)])
        np.testing.assert_allclose(compiled(ops.convert_to_tensor(audio)), expected(audio), atol=1e-4)
    assert len(traces) == 1


def test_each_row_has_its_own_loudest_bin():
    rows = [speechlike(2 * RATE), speechlike(2 * RATE, 1) * 1e-3, np.zeros(2 * RATE, "float32")]
    together = ops.convert_to_numpy(LogMel()(np.stack(rows)))
    np.testing.assert_allclose(together, expected(rows), atol=1e-4)
    for row, features in zip(rows, together, strict=True):
        np.testing.assert_allclose(LogMel()(row[None])[0], features, atol=1e-5)


def test_pieces_of_long_audio_join_to_the_reference_of_the_whole():
    layer = LogMel(chunk_length=1)
    audio = speechlike(3 * RATE + 1600)
    extractor = WhisperFeatureExtractor(chunk_length=1)
    whole = extractor(audio, sampling_rate=RATE, truncation=False, padding="longest", return_tensors="np")
    padded = np.pad(np.pad(audio, 200, mode="reflect"), (0, RATE))
    starts = range(0, len(audio), layer.samples)
    pieces = [np.asarray(layer.spectrum(padded[None, s : s + layer.chunk_samples])[0]) for s in starts]
    spectrum = np.concatenate(pieces, axis=1)[:, : len(audio) // 160]
    np.testing.assert_allclose(scale(spectrum, spectrum.max()), whole.input_features[0], atol=1e-4)


def test_a_batch_goes_through_a_functional_model_under_any_policy():
    audio = np.stack([speechlike(RATE)] * 3)
    inputs = keras.Input((RATE,))
    model = keras.Model(inputs, LogMel(chunk_length=2, dtype="mixed_bfloat16")(inputs))
    assert model.output_shape == (None, 80, 200)
    features = model.predict(audio, verbose=0)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected(audio, chunk_length=2), atol=1e-4)
    copy = keras.Model.from_config(model.get_config())
    np.testing.assert_array_equal(copy.predict(audio, verbose=0), features)


@pytest.mark.parametrize(
    ("audio", "error", "text"),
    [
        (np.zeros((1, 30 * RATE + 1), "float32"), ValueError, "480001 samples; expected 1 to 480000"),
        (np.zeros((1, 0), "float32"), ValueError, "0 samples"),
        (np.zeros((RATE,), "float32"), ValueError, "expected (batch, samples)"),
        (np.zeros((1, RATE, 2), "float32"), ValueError, "one channel"),
        (np.zeros((1, RATE), "int16"), TypeError, "Divide int16 samples by 32768"),
        (keras.KerasTensor((None, None)), ValueError, "Pad it to 480000"),
    ],
)
def test_bad_audio_is_refused(audio, error, text):
    with pytest.raises(error) as caught:
        LogMel()(audio)
    assert text in str(caught.value)


def test_a_chunk_must_be_whole_hops():
    with pytest.raises(ValueError, match="whole hops"):
        LogMel(hop_length=161)
