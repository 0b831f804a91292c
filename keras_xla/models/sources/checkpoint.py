"""`open_checkpoint`: one way to read weights, config and tokenizer, wherever they are stored."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

# A hub name may hold dots ("SmolLM2-1.7B"), so only endings that no model name has count as a file's.
_FILE_ENDINGS = (
    ".gguf",
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".keras",
    ".onnx",
    ".msgpack",
    ".json",
)
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
# Of the weights those that are opened: some repositories have them in other dtypes beside, or an adapter.
_HUB_WEIGHTS = ("model.safetensors", "model-*.safetensors")
_HUB_FILES = (*_HUB_WEIGHTS, "*.json", "*.model", "*.spm", "*.txt", "*.jinja")
# Folders inside a repository hold other formats, but for one; "consolidated" is Mistral's second copy of the weights.
# The patterns cannot say "but for": these say of each other folder's name where it differs.
_HUB_FOLDER = "additional_chat_templates"
_HUB_OTHER_FOLDERS = (f"{_HUB_FOLDER[:i]}[!{letter}]*" for i, letter in enumerate(_HUB_FOLDER))
_HUB_SHORTER_FOLDERS = (_HUB_FOLDER[:i] for i in range(1, len(_HUB_FOLDER)))
_HUB_IGNORED = (*(f"{name}/*" for name in (*_HUB_OTHER_FOLDERS, *_HUB_SHORTER_FOLDERS)), "consolidated*")


class Checkpoint(Protocol):
    """A stored model: what every source of weights offers.

    Attributes:
        path: Where it is, for messages.
        config: As Hugging Face's `config.json`; has `model_type`.
        generation_config: As `generation_config.json`; None if there is none.
        read_tokenizer: Reads the transformers tokenizer; None if none is stored.
    """

    path: str
    config: dict[str, Any]
    read_tokenizer: Callable[[], Any] | None

    @property
    def generation_config(self) -> dict[str, Any] | None: ...

    def names(self) -> set[str]:
        """The names of all tensors, as Hugging Face writes them."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        ...

    def dtype(self) -> str:
        """The float dtype of most of its numbers; float32 for those that are quantized."""
        ...

    def read(self, name: str) -> np.ndarray:
        """One tensor: as stored, or float32 where it was quantized."""
        ...


def open_checkpoint(source: str | os.PathLike) -> Checkpoint:
    """Open a folder with safetensors, a GGUF file, or a model of the Hugging Face hub.

    Args:
        source: A folder, the path of a `.gguf` file, or a hub name: `"org/name"`, `"gpt2"`.

    Raises:
        FileNotFoundError: `source` looks like a path, and nothing is there.
        OSError: `source` looks like a hub name, and the hub gave nothing.
        ValueError: what is there cannot be read as a checkpoint.
    """
    from keras_xla.models.sources.gguf.file import GGUFFile
    from keras_xla.models.sources.safetensors_folder import SafetensorsFolder

    text = os.fspath(source)
    path = Path(os.path.expanduser(text))
    if text and path.is_dir():
        return SafetensorsFolder(path)
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        # By content too: some programs keep GGUF files under names without an ending.
        if path.suffix == ".gguf" or magic == b"GGUF":
            return GGUFFile(path)
        raise ValueError(
            f"Received the file {text!r}; expected a folder with config.json and model.safetensors, or a "
            "GGUF file. For a safetensors file give the folder that holds it; pickled files (.bin, "
            ".pt, .pth) are never opened."
        )
    if not isinstance(source, str) or _looks_like_path(text):
        raise FileNotFoundError(
            f"Received the path {text!r}, where there is neither a file nor a folder (looked in "
            f"{os.getcwd()}). Give an existing folder with config.json and model.safetensors, "
            "a .gguf file, or a hub name such as 'HuggingFaceTB/SmolLM2-135M-Instruct'."
        )
    return SafetensorsFolder(_download(text))


def _looks_like_path(text: str) -> bool:
    return (
        text.startswith((".", "/", "~"))
        or "\\" in text
        or text.lower().endswith(_FILE_ENDINGS)
        or not _HUB_NAME.fullmatch(text)
    )


def _download(name: str) -> Path:
    """The local snapshot of a hub model; only files that can be read without running anything."""
    from keras_xla.models.sources.safetensors_folder import missing_weights

    folder = _snapshot(name, *_HUB_FILES, ignored=_HUB_IGNORED)
    missing = missing_weights(folder)  # of most it is all: those that TensorFlow saved beside are not needed
    return _snapshot(name, *missing) if missing else folder


def _snapshot(name: str, *files: str, ignored: Sequence[str] = ()) -> Path:
    """The folder with these files of a hub model, but for those that are `ignored`, and those downloaded before."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(name, allow_patterns=files, ignore_patterns=list(ignored))
    # The hub client and the HTTP library below it share no base class but this one.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OSError(
            f"Received {name!r}: it is not a local folder or file, and the Hugging Face hub could not give "
            f"it ({type(error).__name__}: {reason}). Give a local folder or a .gguf file, or check the name, "
            "the connection, and for gated models the access token."
        ) from error
    return Path(folder)
