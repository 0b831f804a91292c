"""Whether a checkpoint's features of speech are those that are computed here: Whisper's own."""

from pathlib import Path
from typing import Any

from keras_xla.models.sources.safetensors_folder import read_json

_FEATURES = {"n_fft": 400, "hop_length": 160, "sampling_rate": 16000, "dither": 0, "padding_value": 0}
_FILES = "preprocessor_config.json", "processor_config.json"  # transformers 5 keeps the first inside of the second


def check_front_end(folder: str) -> None:
    """Raise for a checkpoint that was trained with other features; nothing is known of one that does not say.

    Args:
        folder: Where the checkpoint is.

    Raises:
        ValueError: naming the file, and each value that is not supported.
    """
    for name in _FILES:
        file = Path(folder) / name
        content: dict[str, Any] = read_json(file) if file.is_file() else {}
        inside = content.get("feature_extractor")
        said = {**content, **(inside if isinstance(inside, dict) else {})}
        other = {key: said[key] for key, value in _FEATURES.items() if said.get(key) not in (None, value)}
        if other:
            told = ", ".join(f"{key}={value!r}" for key, value in other.items())
            known = ", ".join(f"{key}={_FEATURES[key]}" for key in other)
            raise ValueError(
                f"{file} has {told}; expected {known}: features of speech are computed as for Whisper's own "
                "checkpoints. Compute those of this one elsewhere, remove the file, and pass them as input_features."
            )
