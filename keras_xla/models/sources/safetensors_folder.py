"""A Hugging Face folder: config.json, one or several safetensors files, tokenizer files."""

import functools
import json
import os
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (safetensors finds numpy's bfloat16 only once this has registered it)
import numpy as np
from safetensors import SafetensorError, safe_open

from keras_xla.backend.requirements import require
from keras_xla.models.sources.dtypes import SAFETENSORS, dtype_of_most
from keras_xla.models.sources.tensorflow import folder as tensorflow_folder
from keras_xla.models.sources.tensorflow.names import config_as_computed
from keras_xla.private.triton import refuse_triton
from keras_xla.troubleshooting import warn

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DEEPEST = 100  # lists and objects inside of each other; a real config has a few
_LONGEST_HEADER = 100_000_000  # bytes, as in safetensors
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
_CONFIG_OF_IT = "tokenizer_config.json"
_OF_BYTES = "ByT5Tokenizer"  # which has no vocabulary
_BESIDE_THEM = (
    _CONFIG_OF_IT,
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "chat_template.jinja",
)


class SafetensorsFolder:
    """A checkpoint folder as `save_pretrained` or a hub download leaves it. Tensors are read one by one.

    What TensorFlow classes saved (`tf_model.h5`, or safetensors under their names) reads as PyTorch's would.
    """

    def __init__(self, path: str | Path):
        folder = Path(path)
        self.path = str(folder)
        _refuse_broken_links(folder)
        self.config = _config(folder)
        self.read_tokenizer: Callable[[], Any] | None = None
        if any((folder / name).exists() for name in _TOKENIZER_FILES) or _is_of_bytes(folder / _CONFIG_OF_IT):
            # By then the script may be in another folder.
            self.read_tokenizer = functools.partial(open_tokenizer, os.path.abspath(folder))
        generation = folder / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else None
        self._file_of = {}
        self._from_tensorflow: dict[str, tensorflow_folder.Tensor] = {}
        for file in _weight_files(folder, self.config):
            if file.name == tensorflow_folder.H5:
                self._from_tensorflow |= dict(tensorflow_folder.h5(file))
                continue
            opened = _open(file)
            if (opened.metadata() or {}).get("format") == "tf":
                self._from_tensorflow |= dict(tensorflow_folder.safetensors(opened))
            else:
                self._file_of.update(dict.fromkeys(opened.keys(), opened))
        if self._from_tensorflow:
            self.config = config_as_computed(self.config, self._from_tensorflow)

    def names(self) -> set[str]:
        """The names of all tensors."""
        return {*self._file_of, *self._from_tensorflow}

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        if name in self._from_tensorflow:
            return self._from_tensorflow[name].shape
        return tuple(self._file_of[name].get_slice(name).get_shape())

    def dtype(self) -> str:
        """The float dtype of most of its numbers."""
        stored = [(file.get_slice(name).get_dtype(), self.shape(name)) for name, file in self._file_of.items()]
        stored += [(tensor.dtype, tensor.shape) for tensor in self._from_tensorflow.values()]
        return dtype_of_most((SAFETENSORS.get(dtype, "float32"), shape) for dtype, shape in stored)

    def read(self, name: str) -> np.ndarray:
        """One tensor, in the dtype it is stored in.

        Raises:
            ValueError: for another dtype than those of floats, such as float8: its scales stand elsewhere.
        """
        given = self._from_tensorflow.get(name)
        dtype = self._file_of[name].get_slice(name).get_dtype() if given is None else given.dtype
        if dtype not in SAFETENSORS:
            raise ValueError(
                f"{self.path}: the tensor {name!r} is stored as {dtype}; expected one of {', '.join(SAFETENSORS)}. "
                "Pass the checkpoint that this one was quantized from, with quantization=... to quantize it here."
            )
        return self._file_of[name].get_tensor(name) if given is None else given.read()


def _is_of_bytes(file: Path) -> bool:
    """Whether a tokenizer's config is all that there is of it."""
    try:
        return file.exists() and read_json(file).get("tokenizer_class") == _OF_BYTES
    except (ValueError, OSError):  # who needs the tokenizer is told
        return False


def open_tokenizer(folder: str) -> Any:
    """The tokenizer of a folder; code that comes with it is never run.

    Raises:
        ValueError: for files that transformers cannot read, or only by running code of theirs; it names them.
    """
    require("transformers", "Reading a tokenizer")
    if not os.path.isdir(folder):  # it is read when it is first needed
        raise FileNotFoundError(
            f"{folder} is no longer there, from which the tokenizer was to be read. Keep it, or set layer.tokenizer."
        )
    refuse_triton()
    from transformers import AutoTokenizer  # late: it takes seconds where PyTorch is installed, which it imports

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except BaseException as error:  # transformers and tokenizers raise everything from KeyError to their own
        if not _is_of_reading(error):
            raise
        files = ", ".join(_suspects(Path(folder))) or "what is in there"
        raise ValueError(
            f"{folder}: its tokenizer cannot be read from {files} ({type(error).__name__}: {error}). Pass "
            "tokenizer=..., or download the files again. Code that comes with a tokenizer is not run."
        ) from error


def _suspects(folder: Path) -> list[str]:
    """The damaged files of a tokenizer that could not be read; all of its files where none of them is known to be."""
    names = [name for name in (*_TOKENIZER_FILES, *_BESIDE_THEM) if (folder / name).is_file()]
    return [name for name in names if _is_damaged(folder / name)] or names


def _is_damaged(file: Path) -> bool:
    """Whether a tokenizer's file is known not to be what its name says."""
    from tokenizers import Tokenizer  # late, as transformers, which needs it

    try:
        if file.suffix == ".json":
            read_json(file)
        elif file.suffix in (".txt", ".jinja"):
            file.read_text(encoding="utf-8")
        if file.name == "tokenizer.json":
            Tokenizer.from_file(str(file))
    except BaseException as error:
        if not _is_of_reading(error):
            raise
        return True
    return False


def _is_of_reading(error: BaseException) -> bool:
    """Whether an error comes from what was read, and not from Ctrl-C; a panic of Rust is not even an Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file.

    Raises:
        ValueError: for a file with anything else in it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _check_depth(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}). Download or save it again.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected a JSON object. Download or save it again.")
    return content


def _check_depth(content: Any) -> None:
    """Raise for JSON so deep that functions which copy or print it, and call themselves for that, could fail."""
    level, depth = [content], 0
    while level := [part for part in level if isinstance(part, (dict, list))]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"it nests lists and objects more than {_DEEPEST} deep")
        level = [each for part in level for each in (part.values() if isinstance(part, dict) else part)]


def _refuse_broken_links(folder: Path) -> None:
    """Raise `FileNotFoundError` for links to files that are not there, which look as if the folder had no such file."""
    read = {"config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"}
    read |= {"adapter_config.json", _INDEX, tensorflow_folder.H5, *_TOKENIZER_FILES, *_BESIDE_THEM}
    named = (each for each in folder.glob("*") if each.name in read or each.suffix == ".safetensors")
    if broken := sorted(each.name for each in named if each.is_symlink() and not each.exists()):
        raise FileNotFoundError(
            f"{folder}: these are links to files that are not there: {', '.join(broken)}. Copy the folder with "
            "`cp -rL`, which copies what the links lead to, or download it again."
        )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        hint = "Expected a Hugging Face folder with config.json and model.safetensors"
        if gguf := sorted(file.name for file in folder.glob("*.gguf")):
            hint = f"It holds {', '.join(gguf)}: give the path of that file instead of the folder's"
        elif (folder / "adapter_config.json").exists():
            hint = "It is an adapter (LoRA): merge it into its base model first (peft's `merge_and_unload`)"
        raise ValueError(f"The folder {folder} has no config.json. {hint}.")
    config = read_json(path)
    if "model_type" not in config:
        raise ValueError(
            f"{path} has no 'model_type'; expected the config.json of a transformers model. Download or save it again."
        )
    if not isinstance(config["model_type"], str):
        raise ValueError(
            f"{path} has a 'model_type' of the type {type(config['model_type']).__name__}; expected a string. Download "
            "or save it again."
        )
    if method := config.get("quantization_config"):
        name = method.get("quant_method", "unknown") if isinstance(method, dict) else method
        raise ValueError(
            f"{folder}: its weights are quantized ({name}); expected float32, float16 or bfloat16. "
            "Give the unquantized checkpoint, or a GGUF file of it."
        )
    if (folder / "adapter_config.json").exists():
        warn(
            f"{folder} holds an adapter (LoRA) beside the model, which is not used: the model answers without it. "
            "Merge the adapter first (peft's `merge_and_unload`), or remove adapter_config.json if that was done."
        )
    return config


def _names(folder: Path, config: dict[str, Any]) -> tuple[str | None, str | None]:
    """The file that has all weights, and the index of several; a config may name one of them, and then that counts."""
    named = config.get("transformers_weights")
    if named is None:
        return _WEIGHTS, _INDEX
    whole = isinstance(named, str) and named.endswith(".safetensors")
    if not (whole or (isinstance(named, str) and named.endswith(".safetensors.index.json"))) or _is_outside(named):
        raise ValueError(
            f"{folder / 'config.json'} has transformers_weights={reprlib.repr(named)}; expected the name of a "
            ".safetensors file, or of an index (.safetensors.index.json), in the same folder."
        )
    return (named, None) if whole else (None, named)


def _weight_files(folder: Path, config: dict[str, Any]) -> list[Path]:
    """The files to read; all of them exist."""
    whole, index = _names(folder, config)
    if whole is not None and (folder / whole).exists():
        return [folder / whole]
    if index is not None and (folder / index).exists():
        names = _parts(folder / index)
        if missing := _absent(folder, names):
            raise FileNotFoundError(
                f"{folder}: {len(missing)} of the {len(names)} files named in {index} are missing: "
                f"{', '.join(missing)}. Download them too."
            )
        return [folder / name for name in names]
    if named := config.get("transformers_weights"):
        raise FileNotFoundError(
            f"{folder}: its config.json names {named} as the file of its weights (transformers_weights), which is not "
            "there. Download it too."
        )
    if (folder / tensorflow_folder.H5).exists():
        return [folder / tensorflow_folder.H5]
    if parts := sorted(file.name for file in folder.glob("*.safetensors")):
        raise FileNotFoundError(
            f"The folder {folder} has {', '.join(parts)}, but neither {_WEIGHTS} nor {_INDEX}. If these files are the "
            f"parts of a model, download {_INDEX} too; a file that holds all weights has to be called {_WEIGHTS}."
        )
    found = sorted({file.name for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern)})
    raise FileNotFoundError(
        f"The folder {folder} has neither {_WEIGHTS} nor {_INDEX} nor {tensorflow_folder.H5}"
        + (f"; it has {', '.join(found)}" if found else "")
        + ". Pickled weights (.bin, .pt) and other formats are never opened: convert them with "
        f"`AutoModel.from_pretrained({str(folder)!r}).save_pretrained('converted')`, the Auto class being "
        "that of the model, in an environment with torch."
    )


def missing_weights(folder: Path) -> list[str]:
    """The files with weights that a download still needs: those that its config or index names, or TensorFlow's.

    Raises:
        ValueError: for an index that is damaged, or for names of files outside of the folder.
    """
    file = folder / "config.json"
    config = read_json(file) if file.exists() else {}
    whole, index = _names(folder, config)
    if whole is not None and (folder / whole).exists():
        return []
    if index is not None and (folder / index).exists():
        return _absent(folder, _parts(folder / index))
    if named := config.get("transformers_weights"):
        return [named]
    return [] if any(folder.glob("model-*.safetensors")) else [tensorflow_folder.H5]


def _absent(folder: Path, names: list[str]) -> list[str]:
    return [name for name in names if not os.path.isfile(folder / name)]


def _parts(index: Path) -> list[str]:
    """The files that an index names."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"{index} has no 'weight_map'. Download or save it again.")
    if strange := [name for name in shards.values() if not isinstance(name, str)]:
        raise ValueError(
            f"{index} names {reprlib.repr(strange[0])} as a file; expected a string. Download or save it again."
        )
    names = sorted(set(shards.values()))
    if outside := [name for name in names if _is_outside(name)]:
        raise ValueError(f"{index} names files outside of its folder: {', '.join(outside)}. They are not opened.")
    return names


def _is_outside(name: str) -> bool:
    """Whether that is no name of a file in the same folder."""
    return Path(name).name != name or name in ("", ".", "..")


def _open(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read: {_damage(file)} ({error}). Download or save it again.") from error


def _damage(file: Path) -> str:
    """What is wrong with a safetensors file, from its first bytes and its size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if start.startswith(b"version "):
            return f"it is a Git LFS pointer of {size} bytes, not the weights; run `git lfs pull`"
        length = int.from_bytes(start, "little")
        if size < 8 or length > size - 8:
            return f"it has {size} bytes, and its header alone should have {length} from the 8th byte on"
        try:
            entries: Any = json.loads(stream.read(length)) if length <= _LONGEST_HEADER else None
            ends = [entry["data_offsets"][1] for key, entry in entries.items() if key != "__metadata__"]
            needed = 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
            return f"it has {size} bytes, and its header of {length} bytes is damaged"
    return f"it has {size} bytes, and its header describes {needed}"
