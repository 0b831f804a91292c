"""Everything that speech may come as, as clips: 1-D float32 arrays, one channel, of the model's sampling rate."""

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from keras_xla.generation.columns import as_list
from keras_xla.generation.speech import audio_files

_CONTENTS = ("array", "raw", "audio", "path")
_LOUDEST = 8.0  # decoders overshoot [-1, 1] a little; integers cast to floats overshoot it a lot
_FEWEST = 32  # an axis of so few is no time
_LONGEST_PATH = 4096


def clips(inputs: Any, sampling_rate: Any = None, target: int = 16000) -> list[np.ndarray]:
    """The clips of speech inputs.

    Accepts, for one clip:
    - the path of an audio file (`audio_files.read`),
    - an array, a tensor or a list of floats, `(samples,)`; int16 samples are divided by 32768,
    - `{"array" | "raw" | "audio" | "path": any of these, "sampling_rate": hertz}`, as Hugging Face has it,
    - a decoder of torchcodec, as an entry `["audio"]` of Hugging Face's datasets.

    For several: a list of such; an array or tensor `(batch, samples)`, `(batch, samples, channels)` or
    `(batch, channels, samples)`; a ragged tensor; an array or tensor of paths; a column of a table or of a dataset; a
    dict of any of these.

    Channels, one or two, are averaged. A 2-D array or tensor is one clip `(samples, channels)` if its last axis has
    one or two entries, and a batch otherwise. As an entry of a list it is always one clip, and may as
    well be `(channels, samples)`: for a single stereo clip of that shape pass `[clip]`.

    Args:
        inputs: See above.
        sampling_rate: Of the arrays, in hertz, or one for each clip. Files and dicts have their own.
        target: Sampling rate of the result; audio of another is resampled.

    Raises:
        TypeError: for samples that are neither floats nor int16, and anything that is no audio.
        ValueError: for no clips, an empty one, NaN or infinite samples, more than two channels, floats far beyond
            [-1, 1], arrays without a sampling rate, and files that are no audio.
        FileNotFoundError: if there is no such file.
        ImportError: if it needs a library of the extra `audio`, which is not installed.
    """
    items, rates = _items(inputs, sampling_rate)
    if not items:
        raise ValueError("Received no audio; expected at least one clip.")
    return [_clip(f"Clip {i}", item, rate, target) for i, (item, rate) in enumerate(zip(items, rates, strict=True))]


def _items(inputs: Any, rate: Any) -> tuple[list, list]:
    """One entry a clip, and their sampling rates."""
    if isinstance(inputs, Mapping):
        return _items(*_open(inputs, rate))
    if _is_decoder(inputs):
        return _items(_decoded(inputs), rate)
    items = _split(inputs)
    if rate is None or isinstance(rate, (str, Real)):
        return items, [rate] * len(items)
    rates = np.asarray(rate).reshape(-1).tolist()
    if len(rates) not in (1, len(items)):
        raise ValueError(f"Received {len(rates)} sampling rates for {len(items)} clips; expected one, or one a clip.")
    return items, rates * len(items) if len(rates) == 1 else rates


def _split(inputs: Any) -> list:
    if isinstance(inputs, (str, bytes, os.PathLike)):
        return [inputs]
    if hasattr(inputs, "to_list") and not hasattr(inputs, "__array__"):  # a ragged tensor
        return list(inputs)
    inputs = inputs if hasattr(inputs, "itemsize") else as_list(inputs)  # a buffer is no column
    if isinstance(inputs, (list, tuple)):
        return [inputs] if inputs and isinstance(inputs[0], Real) else list(inputs)
    array = _array("The input", inputs)
    if _is_text(array):
        return array.reshape(-1).tolist()
    if array.dtype.kind == "O" and array.ndim == 1:  # a column of clips
        return array.tolist()
    if array.ndim == 1 or (array.ndim == 2 and 1 <= array.shape[1] <= 2):
        return [array]
    if array.ndim == 2 and array.shape[1] <= _FEWEST < array.shape[0]:
        raise ValueError(
            f"Received audio of shape {array.shape}, with {array.shape[1]} channels; expected one or two. Select or "
            "average the channels that hold speech."
        )
    if array.ndim not in (2, 3):
        raise ValueError(f"Received audio of shape {array.shape}; expected (samples,) or (batch, samples).")
    return list(array)


def _open(clip: Mapping, rate: Any) -> tuple[Any, Any]:
    """What a dict holds, and its sampling rate."""
    own = clip.get("sampling_rate")
    path = clip.get("path")
    there = any(clip.get(name) is not None for name in _CONTENTS if name != "path")
    if clip.get("bytes") is not None and not there and not (path is not None and os.path.exists(path)):
        raise TypeError(
            "Received a dict with the bytes of a sound file, as a dataset has them before it decodes; expected "
            "samples. Decode the column, such as by dataset.cast_column(name, datasets.Audio())."
        )
    for name in _CONTENTS:
        if clip.get(name) is not None:
            return clip[name], rate if own is None else own
    raise ValueError(f"Received a dict with the keys {sorted(clip)}; expected one of {', '.join(_CONTENTS)}.")


def _is_decoder(item: Any) -> bool:
    return hasattr(item, "get_all_samples")


def _decoded(decoder: Any) -> dict[str, Any]:
    """All that a decoder of torchcodec reads: `(samples, channels)`, which it has the other way round."""
    samples = decoder.get_all_samples()
    return {"array": _array("The input", samples.data).T, "sampling_rate": samples.sample_rate}


def _clip(name: str, item: Any, rate: Any, target: int) -> np.ndarray:
    while isinstance(item, Mapping) or _is_decoder(item):
        item, rate = _open(item if isinstance(item, Mapping) else _decoded(item), rate)
    if isinstance(item, bytes) and len(item) > _LONGEST_PATH:
        raise TypeError(
            f"{name} is {len(item)} bytes, which look like the content of a file; expected its path, or samples."
        )
    if isinstance(item, (str, bytes, os.PathLike)):
        path = os.fsdecode(item)
        name = f"{name} ({path})"
        samples, rate = audio_files.read(path)
    else:
        samples = _array(name, item)
        if _is_text(samples) and samples.size == 1:
            return _clip(name, samples.item(), rate, target)
    samples = _mono(name, _floats(name, samples))
    samples = audio_files.resample(samples, _rate(name, rate), target)
    return np.ascontiguousarray(samples, np.float32)


def _floats(name: str, samples: np.ndarray) -> np.ndarray:
    if samples.size == 0:
        raise ValueError(f"{name} is empty (shape {samples.shape}); expected at least one sample.")
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / 2**15
    # bfloat16 is no float to NumPy.
    if not (np.issubdtype(samples.dtype, np.floating) or samples.dtype.name == "bfloat16"):
        hint = " If these are 16-bit samples, cast them to int16." if samples.dtype.kind in "iu" else ""
        raise TypeError(f"{name} has dtype {samples.dtype}; expected floats in [-1, 1], or int16.{hint}")
    with np.errstate(over="ignore"):  # the check below says it better
        samples = samples.astype(np.float32)
    if not np.isfinite(samples).all():
        raise ValueError(f"{name} has {np.sum(~np.isfinite(samples))} NaN or infinite samples; expected finite ones.")
    if (loudest := np.abs(samples).max()) > _LOUDEST:
        raise ValueError(
            f"{name} has floats up to {loudest:g}; expected [-1, 1]. If they were 16-bit integers, divide by 32768, "
            "or pass them as int16."
        )
    return samples


def _mono(name: str, samples: np.ndarray) -> np.ndarray:
    """`(samples,)`, the mean of the channels."""
    if samples.ndim == 1:
        return samples
    if samples.ndim == 2 and min(samples.shape) <= 2:
        return samples.mean(axis=1 if samples.shape[1] <= 2 else 0)
    channels = f", with {min(samples.shape)} channels" if samples.ndim == 2 else ""
    raise ValueError(
        f"{name} has the shape {samples.shape}{channels}; expected (samples,), or one or two channels: "
        "(samples, channels) or (channels, samples). Select or average the channels that hold speech."
    )


def _rate(name: str, rate: Any) -> int:
    if rate is None:
        raise ValueError(
            f"{name} is an array without a sampling rate. Pass sampling_rate=16000, or whatever it was recorded with; "
            'or {"array": ..., "sampling_rate": ...}.'
        )
    rate = rate.item() if hasattr(rate, "item") else rate
    if isinstance(rate, float) and rate.is_integer():
        rate = int(rate)
    if isinstance(rate, bool) or not isinstance(rate, Integral):
        raise TypeError(f"Received sampling_rate={rate!r} of type {type(rate).__name__}; expected an int.")
    hertz = int(rate)
    if not 1000 <= hertz <= 10**6:
        raise ValueError(f"Received sampling_rate={rate}; expected hertz, such as 16000 or 44100.")
    return hertz


def _is_text(array: np.ndarray) -> bool:
    if array.dtype.kind == "O":
        return array.size > 0 and isinstance(array.flat[0], (str, bytes))
    return array.dtype.kind in "UST"


def _array(name: str, x: Any) -> np.ndarray:
    if hasattr(x, "detach") and hasattr(x, "cpu"):  # PyTorch, whose bfloat16 NumPy does not know
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() else x
    try:
        array = np.asarray(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} is a {type(x).__name__} that is no array: {error}. Pass a path or an array."
        ) from error
    if array.ndim == 0 and not _is_text(array):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a path, or an array or tensor of samples.")
    return array
