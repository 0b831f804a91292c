"""Log-mel features of clips of any length, a fixed-shape piece at a time, and the windows that a model reads."""

import functools
import json
from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_xla.engine.executables import Executables
from keras_xla.engine.warmup import FirstCall
from keras_xla.models.layers.log_mel import LogMel, scale


@dataclass(frozen=True)
class FeaturesKey:
    """What changes the graph of the features: nothing but the size of a piece."""

    samples: int

    def __str__(self):
        return f"log-mel features, {self.samples} samples"


@dataclass(frozen=True)
class ClipFeatures:
    """The features of one clip.

    Attributes:
        values: `(mel bins, frames)` float32; a clip shorter than a window is padded with silence to one.
        frames: How many of the frames are of the clip itself.
    """

    values: np.ndarray
    frames: int

    def window(self, seek: int, size: int) -> np.ndarray:
        """`(mel bins, size)` from the frame `seek` on; zeros behind the end."""
        part = self.values[:, seek : seek + size]
        return np.pad(part, ((0, 0), (0, size - part.shape[1])))


class Features:
    """From clips to features; one executable serves clips of every length.

    Args:
        log_mel: What computes a piece; its chunk is the window of the model.
        name: For the compile log.
    """

    def __init__(self, log_mel: LogMel, name: str = "features"):
        self.log_mel = log_mel
        computes = functools.partial(json.dumps, {**log_mel.get_config(), "name": ""}, sort_keys=True)
        self.executables = Executables(name, lambda key: (log_mel.spectrum, None), [], computes=computes)

    @property
    def samples(self) -> int:
        """The length of a window."""
        return self.log_mel.samples

    @property
    def frames(self) -> int:
        """The length of a window, in frames."""
        return self.log_mel.frames

    def frames_of(self, clip: np.ndarray) -> int:
        """How many whole frames `clip (samples,)` has."""
        return len(clip) // self.log_mel.hop_length

    def first_call(self) -> FirstCall:
        """Of the executable."""
        key = FeaturesKey(self.log_mel.chunk_samples)
        return FirstCall(self.executables, key, lambda: self(np.zeros((self.samples,), np.float32)))

    def __call__(self, clip: np.ndarray) -> ClipFeatures:
        """The features of `clip (samples,)` float32, as `transformers.WhisperFeatureExtractor` has them.

        A clip of at most one window is padded with zeros to it; a longer one is not padded.
        """
        mel, hop = self.log_mel, self.log_mel.hop_length
        audio = np.pad(clip, (0, max(0, mel.samples - len(clip))))
        frames = self.frames_of(audio)
        half = mel.n_fft // 2
        audio = np.pad(audio, half, mode="reflect")
        starts = range(0, frames * hop, mel.samples)
        audio = np.pad(audio, (0, max(0, starts[-1] + mel.chunk_samples - len(audio))))
        key = FeaturesKey(mel.chunk_samples)
        pieces = [self.executables(key, ops.convert_to_tensor(audio[None, s : s + mel.chunk_samples])) for s in starts]
        spectrum = np.concatenate([ops.convert_to_numpy(piece)[0] for piece in pieces], axis=1)[:, :frames]
        return ClipFeatures(scale(spectrum, spectrum.max()), min(frames, -(-len(clip) // hop)))
