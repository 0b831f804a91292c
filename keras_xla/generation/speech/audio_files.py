"""Reading audio files and resampling, with the libraries of the extra `audio`."""

import os
import wave

import numpy as np

_UNKNOWN_BYTES = 2**31 - 2**16  # from here on, who wrote the file could not tell how much would come
INSTALL = "Install the extra audio: pip install soundfile soxr"


def read(path: str | os.PathLike) -> tuple[np.ndarray, int]:
    """Samples `(samples, channels)`, float32 or int16, and the sampling rate of a wav, flac, ogg or mp3 file.

    Uses `soundfile`, or for 16-bit wav files without it, the standard library.

    Raises:
        FileNotFoundError, IsADirectoryError: if there is no such file.
        ValueError: if it is no audio file, or a flac or plain PCM wav file that was cut off. (Others do not tell.)
        ImportError: if it takes `soundfile` to read, which is not installed.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"Received the folder {path!r}; expected an audio file.")
    if not os.path.exists(path):
        hint = " Download it first: addresses are not opened." if "://" in path else ""
        raise FileNotFoundError(f"There is no audio file {path!r}.{hint}")
    try:
        import soundfile  # late: optional
    except (ImportError, OSError):  # OSError: the package is there, its C library is not
        return _read_wav(path)
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        _check_whole(path, len(samples))
        return samples, rate
    except (soundfile.LibsndfileError, TypeError) as error:  # TypeError: samples without a header, by the file's name
        raise ValueError(
            f"{path!r} is no audio file that soundfile can read ({error}). Convert it, for example with "
            "`ffmpeg -i FILE -ac 1 -ar 16000 speech.wav`."
        ) from error


def resample(samples: np.ndarray, rate: int, target: int) -> np.ndarray:
    """`(samples,)` float32 from `rate` to `target` samples a second, low-pass filtered against aliasing.

    Raises:
        ImportError: without `soxr`, if the rates differ.
    """
    if rate == target:
        return samples
    try:
        import soxr  # late: optional
    except ImportError as error:
        raise ImportError(
            f"Audio of {rate} Hz must be resampled to {target} Hz, which needs soxr. {INSTALL}; or "
            f"resample the audio yourself."
        ) from error
    return soxr.resample(samples, rate, target)


def _read_wav(path: str) -> tuple[np.ndarray, int]:
    try:
        with wave.open(path, "rb") as file:
            if file.getsampwidth() != 2:
                raise wave.Error(f"{8 * file.getsampwidth()}-bit samples")
            content, channels, rate = file.readframes(file.getnframes()), file.getnchannels(), file.getframerate()
    except (wave.Error, EOFError, RuntimeError) as error:
        told = str(error) or "its header has wrong sizes"
        raise ImportError(f"{path!r} is no 16-bit wav file ({told}); other files need soundfile. {INSTALL}") from error
    samples = np.frombuffer(content[: len(content) // (2 * channels) * 2 * channels], "<i2").reshape(-1, channels)
    _check_whole(path, len(samples))
    return samples, rate


def _check_whole(path: str, read: int) -> None:
    """Raise for a wav file whose header tells of more samples than were read; other files tell nothing here."""
    try:
        with wave.open(path, "rb") as file:
            told, size = file.getnframes(), file.getnchannels() * file.getsampwidth()
    except (wave.Error, EOFError, RuntimeError):  # the last of a header with wrong sizes
        return
    if read < told and told * size < _UNKNOWN_BYTES:
        raise ValueError(
            f"{path!r} has {read} of the {told} samples that its header announces. Download or copy it again."
        )
