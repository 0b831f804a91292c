"""Whatever speech comes as gives the same clips; everything else gives an error that says what to do."""

import sys
import types
import wave
from array import array
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_xla.generation.speech import audio, audio_files

RATE = 16000
CLIP = (0.5 * np.sin(np.arange(4000) / 9)).astype("float32")
PCM = np.round(CLIP * 2**15).astype("int16")
STEREO = np.stack([CLIP * 2, CLIP * 0], axis=1)  # its mean is CLIP


@pytest.fixture
def folder(tmp_path):
    """`speech.wav`, `speech.flac` (16 bits each) and `stereo.wav` (float)."""
    for name in ("speech.wav", "speech.flac"):
        soundfile.write(tmp_path / name, PCM, RATE)
    soundfile.write(tmp_path / "stereo.wav", STEREO, RATE, subtype="FLOAT")
    return tmp_path


def only(inputs, sampling_rate=None):
    (clip,) = audio.clips(inputs, sampling_rate)
    assert clip.dtype == np.float32 and clip.ndim == 1 and clip.flags.c_contiguous
    return clip


class Decoder:
    """As torchcodec's, which Hugging Face's datasets give."""

    def __init__(self, samples):
        self._samples = torch.tensor(samples.T)

    def get_all_samples(self):
        return types.SimpleNamespace(data=self._samples, sample_rate=RATE)


@pytest.mark.parametrize("samples", [CLIP[:, None], STEREO], ids=["mono", "stereo"])
def test_a_decoder_of_torchcodec_is_read(samples):
    decoder = Decoder(samples)
    for entry in (decoder, [decoder], {"audio": decoder}, [{"audio": decoder, "text": "hello"}]):
        np.testing.assert_allclose(only(entry), CLIP, atol=1e-6)
    assert len(audio.clips([decoder, CLIP], [None, RATE])) == 2
    with pytest.raises(ValueError, match="with 3 channels"):
        audio.clips(Decoder(np.zeros((400, 3), "float32")))


@pytest.mark.parametrize(
    "samples",
    [
        CLIP,
        CLIP.astype("float64"),
        CLIP.tolist(),
        CLIP[:, None],
        STEREO,
        [STEREO],
        [STEREO.T],
        CLIP[None],
        STEREO[None],
        STEREO.T[None],
        [CLIP.tolist()],
        keras.ops.convert_to_tensor(CLIP),
        torch.tensor(CLIP, requires_grad=True),
        {"array": CLIP},
        {"raw": [CLIP]},
        [{"audio": {"array": CLIP, "path": "unused.wav"}, "text": "hello"}],
    ],
)
def test_samples_of_any_kind_and_shape(samples):
    np.testing.assert_allclose(only(samples, RATE), CLIP, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_widened(dtype):
    half = keras.ops.cast(CLIP, dtype)
    np.testing.assert_array_equal(only(half, RATE), np.asarray(keras.ops.cast(half, "float32")))


@given(arrays.arrays(np.int16, st.integers(1, 20)))
def test_int16_samples_are_divided_by_32768(pcm):
    np.testing.assert_array_equal(only(pcm, RATE), pcm / np.float32(32768))


@pytest.mark.parametrize("name", ["speech.wav", "speech.flac", "stereo.wav"])
@pytest.mark.parametrize("kind", [str, Path, lambda p: str(p).encode(), lambda p: np.array([str(p)]), lambda p: [p]])
def test_files(folder, name, kind):
    np.testing.assert_allclose(only(kind(folder / name)), CLIP, atol=2**-15)


def test_a_file_keeps_its_own_sampling_rate(folder):
    assert len(only(str(folder / "speech.wav"), 8000)) == len(CLIP)
    assert len(only({"path": folder / "speech.wav"})) == len(CLIP)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow has string and ragged tensors")
def test_tensors_of_paths_and_ragged_tensors(folder):
    import tensorflow as tf

    paths = tf.constant([str(folder / "speech.wav"), str(folder / "stereo.wav")])
    for clip in [*audio.clips(paths), *audio.clips(paths[:, None])]:
        np.testing.assert_allclose(clip, CLIP, atol=2**-15)
    first, second = audio.clips(tf.ragged.constant([CLIP.tolist(), CLIP[:70].tolist()]), RATE)
    np.testing.assert_array_equal(first, CLIP)
    np.testing.assert_array_equal(second, CLIP[:70])


class Column(Sequence):
    """As `dataset["audio"]` of Hugging Face's datasets."""

    def __init__(self, entries):
        self._entries = entries

    def __len__(self):
        return len(self._entries)

    def __getitem__(self, i):
        return self._entries[i]


@pytest.mark.parametrize("kind", ["dataset", "objects", "pandas", "polars", "pyarrow"])
def test_columns_of_clips(kind):
    entries = [CLIP, CLIP[:70]]
    if kind == "dataset":
        column = Column(entries)
        one_rate = Column([{"array": each, "sampling_rate": RATE} for each in entries])
        assert [len(clip) for clip in audio.clips(one_rate)] == [len(CLIP), 70]
    elif kind == "objects":
        column = np.empty(2, object)
        column[:] = entries
    elif kind == "pyarrow":
        column = pytest.importorskip("pyarrow").array([each.tolist() for each in entries])
    else:
        column = pytest.importorskip(kind).Series(entries)
    first, second = audio.clips(column, RATE)
    np.testing.assert_array_equal(first, CLIP)
    np.testing.assert_array_equal(second, CLIP[:70])


def test_buffers_of_samples():
    pcm = (CLIP * 2**15).astype("int16")
    for buffer in (array("h", pcm.tolist()), memoryview(pcm)):
        np.testing.assert_allclose(only(buffer, RATE), CLIP, atol=2**-14)


def test_a_list_may_mix_files_arrays_and_dicts_of_different_rates(folder):
    mixed = [str(folder / "speech.wav"), STEREO.T, {"array": np.repeat(CLIP, 2), "sampling_rate": 2 * RATE}]
    lengths = [len(clip) for clip in audio.clips(mixed, RATE)]
    assert lengths == [len(CLIP)] * 3


def test_each_clip_may_have_a_sampling_rate_of_its_own():
    clips = audio.clips(np.zeros((3, 4800), "float32"), [8000, 16000, np.int64(48000)])
    assert [len(clip) for clip in clips] == [9600, 4800, 1600]
    clips = audio.clips({"audio": np.zeros((2, 4800), "float32"), "sampling_rate": np.array([[8000], [16000]])})
    assert [len(clip) for clip in clips] == [9600, 4800]


def test_a_batch_is_told_from_channels_by_its_last_axis():
    assert len(audio.clips(np.zeros((2, 4000), "float32"), RATE)) == 2
    assert len(audio.clips(np.zeros((4000, 2), "float32"), RATE)) == 1
    assert len(audio.clips([np.zeros((2, 4000), "float32")], RATE)) == 1


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000.0])
def test_resampling_keeps_speech_and_removes_what_would_alias(rate):
    time = np.arange(int(rate)) / rate
    low = only(np.sin(2 * np.pi * 1000 * time), rate)
    assert len(low) == RATE
    exact = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(low[800:-800], exact[800:-800], atol=1e-3)
    if rate > 22050:
        high = only(np.sin(2 * np.pi * 11000 * time), rate)  # would be heard at 5 kHz
        assert np.abs(high[800:-800]).max() < 1e-3


BAD = [
    ([], ValueError, "no audio"),
    (np.zeros((0, 100), "float32"), ValueError, "no audio"),
    (np.zeros(0, "float32"), ValueError, "Clip 0 is empty"),
    ([CLIP, np.zeros((0, 2), "float32")], ValueError, "Clip 1 is empty"),
    ([CLIP, np.array([0.0, np.nan, np.inf])], ValueError, "Clip 1 has 2 NaN or infinite samples"),
    (np.array([1e300]), ValueError, "1 NaN or infinite"),
    (PCM.astype("float32"), ValueError, "pass them as int16"),
    (PCM.astype("int64"), TypeError, "dtype int64; expected floats in [-1, 1], or int16. If these are 16-bit"),
    (PCM.tolist(), TypeError, "dtype int64"),
    (CLIP.astype("complex64"), TypeError, "dtype complex64"),
    (CLIP > 0, TypeError, "dtype bool"),
    ([np.array([CLIP, CLIP[1:]], object)], TypeError, "dtype object"),
    ([[[0.1, 0.2], [0.3]]], TypeError, "list that is no array"),
    ([[None]], TypeError, "dtype object"),
    (None, TypeError, "is a NoneType"),
    ([CLIP, 0.5], TypeError, "Clip 1 is a float"),
    (lambda: None, TypeError, "is a function"),
    (np.zeros((4000, 3), "float32"), ValueError, "with 3 channels"),
    ([np.zeros((6, 4000), "float32")], ValueError, "with 6 channels"),
    (np.zeros((1, 4000, 3), "float32"), ValueError, "with 3 channels"),
    (np.zeros((1, 1, 2, 9), "float32"), ValueError, "expected (samples,) or (batch, samples)"),
    ({"samples": CLIP}, ValueError, "expected one of array, raw"),
    ("no/such.wav", FileNotFoundError, "no audio file 'no/such.wav'"),
    ("https://example.org/speech.wav", FileNotFoundError, "Download it first"),
    (b"RIFF" + bytes(5000), TypeError, "content of a file"),
]


@pytest.mark.parametrize(("inputs", "error", "text"), BAD)
def test_bad_audio_is_refused(inputs, error, text):
    with pytest.raises(error) as caught:
        audio.clips(inputs, RATE)
    assert text in str(caught.value)


def test_open_files_are_refused_and_stay_as_they_are(folder):
    with open(folder / "speech.wav", "rb") as file:
        for inputs in (file, [file]):
            with pytest.raises(TypeError, match="expected a path"):
                audio.clips(inputs, RATE)
        assert file.read(4) == b"RIFF"


def test_bfloat16_of_pytorch_is_read():
    tensor = torch.tensor(CLIP, dtype=torch.bfloat16)
    np.testing.assert_array_equal(only(tensor, RATE), tensor.float().numpy())


@pytest.mark.parametrize(
    ("rate", "error", "text"),
    [
        (None, ValueError, "Pass sampling_rate=16000"),
        (16, ValueError, "expected hertz"),
        (-16000, ValueError, "expected hertz"),
        (16000.5, TypeError, "expected an int"),
        ("16000", TypeError, "expected an int"),
        (True, TypeError, "expected an int"),
        ([16000, 8000], ValueError, "2 sampling rates for 1 clips"),
    ],
)
def test_a_sampling_rate_is_never_guessed(rate, error, text):
    with pytest.raises(error) as caught:
        audio.clips(CLIP, rate)
    assert text in str(caught.value)


def test_files_that_are_no_audio_are_refused(tmp_path):
    for name in ("speech.wav", "empty.wav", "notes.txt"):
        (tmp_path / name).write_bytes(b"" if name == "empty.wav" else b"not audio at all")
        with pytest.raises(ValueError, match=f"(?s){name}.*no audio file.*ffmpeg"):
            audio.clips(str(tmp_path / name))
    with pytest.raises(IsADirectoryError, match="expected an audio file"):
        audio.clips(tmp_path)
    soundfile.write(tmp_path / "surround.wav", np.zeros((900, 6)), RATE)
    with pytest.raises(ValueError, match=r"surround.wav.*with 6 channels"):
        audio.clips(tmp_path / "surround.wav")


def cut_off(folder, told=None):
    """A wav file with the first half of the samples that its header tells of, or of what is `told` in its place."""
    path = folder / "half.wav"
    soundfile.write(path, PCM, RATE)
    content = path.read_bytes()
    begin = len(content) - 2 * len(PCM)
    told = content[begin - 4 : begin] if told is None else told
    path.write_bytes(content[: begin - 4] + told + content[begin : begin + len(PCM)])
    return path


def test_a_wav_file_that_was_cut_off_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"half.wav' has 2000 of the 4000 samples"):
        audio.clips(cut_off(tmp_path))
    whole = only(cut_off(tmp_path, told=b"\xff" * 4))  # as a pipe leaves it: who wrote it did not know
    np.testing.assert_allclose(whole, CLIP[:2000], atol=2**-15)


def test_a_header_with_wrong_sizes_is_left_to_soundfile(tmp_path):
    path = tmp_path / "streamed.wav"
    soundfile.write(path, PCM, RATE)
    content = path.read_bytes()
    notes = b"LIST" + (4).to_bytes(4, "little") + b"INFO"
    path.write_bytes(content[:4] + (36).to_bytes(4, "little") + content[8:36] + notes + content[36:])
    np.testing.assert_allclose(only(path), CLIP, atol=2**-15)


class TestWithoutTheExtra:
    @pytest.fixture(autouse=True)
    def bare(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "soundfile", None)
        monkeypatch.setitem(sys.modules, "soxr", None)

    @pytest.mark.parametrize("channels", [1, 2])
    def test_16_bit_wav_files_are_read(self, tmp_path, channels):
        with wave.open(str(tmp_path / "speech.wav"), "wb") as file:
            file.setparams((channels, 2, RATE, 0, "NONE", ""))
            file.writeframes(np.repeat(PCM, channels).tobytes())
        np.testing.assert_allclose(only(tmp_path / "speech.wav"), CLIP, atol=2**-15)

    def test_one_that_was_cut_off_is_refused(self, tmp_path):
        path = cut_off(tmp_path)
        for end in (len(path.read_bytes()), -1):  # also within a sample
            path.write_bytes(path.read_bytes()[:end])
            with pytest.raises(ValueError, match=r"half.wav' has \d+ of the 4000 samples"):
                audio.clips(path)

    @pytest.mark.parametrize("name", ["speech.flac", "stereo.wav"])
    def test_other_files_name_the_extra(self, folder, name):
        with pytest.raises(ImportError) as caught:
            audio.clips(folder / name)
        assert name in str(caught.value) and audio_files.INSTALL in str(caught.value)

    def test_resampling_names_the_extra(self):
        assert len(only(CLIP, RATE)) == len(CLIP)
        with pytest.raises(ImportError) as caught:
            audio.clips(CLIP, 44100)
        assert "44100 Hz" in str(caught.value) and audio_files.INSTALL in str(caught.value)
