"""The features of clips of any length are WhisperFeatureExtractor's, from one executable."""

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from keras_xla.generation.speech.features import ClipFeatures, Features
from keras_xla.models.layers.log_mel import LogMel
from tests.speech_reference import sound

RATE = 16000


def expected(clip):
    """The reference's: padded to a window of one second, or as long as the clip."""
    extractor = WhisperFeatureExtractor(chunk_length=1)
    long = dict(truncation=False, padding="longest") if len(clip) > RATE else {}
    return extractor(clip, sampling_rate=RATE, return_tensors="np", **long).input_features[0]


def test_features_equal_the_reference_at_every_length_and_compile_once():
    features = Features(LogMel(chunk_length=1))
    for samples in (1, 100, 159, 161, RATE - 1, RATE, RATE + 1, RATE + 160, 2 * RATE, 3 * RATE + 777):
        clip = sound(4.0)[:samples]
        made = features(clip)
        np.testing.assert_allclose(made.values, expected(clip), atol=1e-4)
        frames = samples // 160 if samples > RATE else -(-samples // 160)
        assert made.frames == frames
    assert features.executables.trace_count == 1


@pytest.mark.parametrize("mel_bins", [80, 128])
def test_the_loudest_bin_is_that_of_the_whole_clip(mel_bins):
    quiet, loud = sound(1.0) * 1e-3, sound(1.0, seed=1)
    features = Features(LogMel(mel_bins, chunk_length=1))
    alone, first = features(quiet).values, features(np.concatenate([quiet, loud])).values[:, :90]
    assert first.shape[0] == mel_bins and first.min() > alone[:, :90].min() + 0.5


def test_windows_are_zero_behind_the_end():
    values = np.arange(12, dtype="float32").reshape(2, 6) + 1
    clip = ClipFeatures(values, 5)
    np.testing.assert_array_equal(clip.window(1, 4), values[:, 1:5])
    np.testing.assert_array_equal(clip.window(4, 4), [[5, 6, 0, 0], [11, 12, 0, 0]])
