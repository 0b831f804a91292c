"""Bundles: the executables of a layer in a folder, which a server or a container brings along."""

import hashlib
import json
import os
import pathlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend.executable_cache.cache import ExecutableCache
from keras_xla.cache_folder import write_whole
from keras_xla.engine.executables import Executables
from keras_xla.engine.kept import computed_with
from keras_xla.troubleshooting import explained, warn

MANIFEST = "compiled.json"
FORMAT = 1
_AGAIN = "Make it again with layer.save_compiled"


@explained
class SavedExecutables(keras.layers.Layer):
    """The methods of `XLAGenerationLayer` with which its executables are saved and read."""

    def save_compiled(self, folder: str | os.PathLike) -> int:
        """Save what has been compiled so far into a folder, a bundle, from which another process answers at once.

        That process neither traces nor compiles what is in it: pass the folder to `from_pretrained(..., compiled=...)`,
        or to `load_compiled`. A bundle holds no weights, and serves checkpoints of the same architecture, sizes, dtype
        and quantization. It holds for the same versions, kind of processor, number of cores and settings. On
        TensorFlow `keras_xla.compile_cache()` has to be on in the process that saves it.

        A bundle is a program: load none that you would not run.

        Args:
            folder: Where it goes (a path). It is made if it is not there. A bundle that is there is replaced; one that
                this layer has loaded keeps its executables, too, those that nobody has needed yet among them.

        Returns:
            How many executables are in it (int).

        Raises:
            ValueError: Nothing has been compiled yet, or the model or a logits processor is code of your own, of which
                nobody can tell whether it is the same in another process.
            RuntimeError: This process keeps no executables: on TensorFlow `keras_xla.compile_cache()` was not called,
                or there is a GPU; on JAX there are several devices. Or one is no longer there.
            FileExistsError: The folder holds something else.
            OSError: The folder cannot be written.

        Example:
        ```python
        import keras_xla
        keras_xla.compile_cache()  # TensorFlow needs it, before anything runs
        layer = keras_xla.XLAGenerationLayer.from_pretrained("openai-community/gpt2")
        layer.warmup(batch_sizes=[1, 4], max_new_tokens=50)
        layer.save_compiled("gpt2-compiled")
        ```
        """
        return save(self._executables(), pathlib.Path(folder))

    def load_compiled(self, folder: str | os.PathLike) -> None:
        """Take executables from a bundle from now on, each when it is needed for the first time.

        Those that have been compiled before stay. Call this right after the layer was made, such as for a pipeline that
        `keras.saving.load_model` has loaded. On TensorFlow, call `keras_xla.compile_cache()` right after the imports:
        later XLA compiles again, though nothing is traced.

        Args:
            folder: What `save_compiled` has made (a path).

        Raises:
            FileNotFoundError: There is no bundle.
            ValueError: It cannot be read, or was saved for another model. Or the model or a logits processor is code of
                your own.

        Example:
        ```python
        import keras_xla
        keras_xla.compile_cache()
        layer = keras_xla.XLAGenerationLayer.from_pretrained("openai-community/gpt2", max_new_tokens=4)
        layer.generate("One")
        layer.save_compiled("gpt2-compiled")
        other = keras_xla.XLAGenerationLayer.from_pretrained("openai-community/gpt2", max_new_tokens=4)
        other.load_compiled("gpt2-compiled")
        print(other.generate("Two"), other.trace_count)  # 0
        ```
        """
        load(self._executables(), pathlib.Path(folder))

    def _executables(self) -> list[Executables]:
        """All of the layer."""
        speech = [] if self._speech is None else [self._speech.features.executables]
        return [self._generator.executables, *speech]


def save(executables: Sequence[Executables], folder: pathlib.Path) -> int:
    """See `SavedExecutables.save_compiled`."""
    backend.require_keeping()
    folder = folder.expanduser().resolve()
    known = (".xla", ".new") if (folder / MANIFEST).exists() else ()  # without it, they are of a cache of executables
    if others := sorted(name for name in _names(folder) if name != MANIFEST and not name.endswith(known)):
        raise FileExistsError(
            f"{folder} holds other files than a bundle of executables, such as {others[0]}. Give a folder of its own."
        )
    if not any(each.keys for each in executables):
        raise ValueError(
            "Received a layer that has compiled nothing. Call its method warmup before, with the sizes and options "
            "that calls will have."
        )
    _refuse_own_code(executables)
    folder.mkdir(parents=True, exist_ok=True)
    bundle, before = _NewBundle(folder), _names(folder)
    loaded = _loaded(executables, folder)
    if loaded is not None:
        bundle.used |= {name for name in before if name.endswith(".xla")}
    if MANIFEST not in before:  # what a killed process leaves is a bundle, and not finished
        write_whole(folder / MANIFEST, json.dumps({"format": None}))
    try:
        keys = sorted((Counter(_put(executables, bundle)) | Counter(loaded or ())).elements())
        content = {"format": FORMAT, "computes": _computes(executables), "computed_with": computed_with()}
        write_whole(folder / MANIFEST, json.dumps({**content, "executables": keys}, indent=1))
    except BaseException:
        _remove(folder, (bundle.used | {MANIFEST}) - before)  # what was there is as it was
        raise
    _remove(folder, {name for name in before if name.endswith(".xla")} - bundle.used)
    return len(keys)


def _loaded(executables: Sequence[Executables], folder: pathlib.Path) -> list[str] | None:
    """The keys of the bundle in a folder, if all of these read from it and it is still theirs; otherwise None."""
    if any(each.kept.bundle is None or each.kept.bundle.folder != folder for each in executables):
        return None
    try:
        there = _manifest(folder)
    except (FileNotFoundError, ValueError):
        return None
    same = there["computes"] == _computes(executables) and there["computed_with"] == computed_with()
    return list(there.get("executables", ())) if same else None


class _NewBundle(ExecutableCache):
    """A folder that knows which of its files belong to what is saved now."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder, sys.maxsize)
        self.used: set[str] = set()

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        self.used |= set() if found is None else {f"{key}.xla"}
        return found

    def put(self, key: str, payload: bytes) -> bool:
        self.used.add(f"{key}.xla")
        return super().put(key, payload)


def _refuse_own_code(executables: Sequence[Executables]) -> None:
    if any(each.kept.computes() is None for each in executables):
        raise ValueError(
            "Received a layer whose model or logits_processors are code of your own, which may be another in another "
            "process. Expected a model of keras_xla's, as from_pretrained makes it, without logits_processors."
        )


def _put(executables: Sequence[Executables], bundle: ExecutableCache) -> list[str]:
    """Put all executables into a bundle; returns their keys as text."""
    saved = {key: there for each in executables for key, there in each.save(bundle).items()}
    failed = [key for key, there in saved.items() if not there]
    assistants = [str(key) for key in failed if getattr(key, "assistant", 0)]
    if others := [str(key) for key in failed if not getattr(key, "assistant", 0)]:
        raise RuntimeError(
            f"These executables are not on disk, and cannot be saved: {'; '.join(others)}. The disk is full, or they "
            "were let go of to make room: raise max_bytes of keras_xla.compile_cache. Or JAX has read them from a "
            "cache of your own: leave JAX_COMPILATION_CACHE_DIR out of the process that saves."
        )
    if assistants:
        warn(f"keras_xla saves no executables of assistants: {'; '.join(assistants)}. They compile again.")
    return [str(key) for key, there in saved.items() if there]


def _names(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _remove(folder: pathlib.Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def prepare(folder: pathlib.Path) -> None:
    """Raise for what is no bundle, and get ready to read one; to be called before anything runs."""
    _manifest(folder.expanduser())
    backend.prepare_to_read()


def load(executables: Sequence[Executables], folder: pathlib.Path) -> None:
    """See `SavedExecutables.load_compiled`."""
    folder = folder.expanduser().resolve()
    manifest = _manifest(folder)
    _refuse_own_code(executables)
    there, here = manifest["computed_with"], computed_with()
    # Another version of keras_xla may describe the same model in other words.
    if there.get("keras_xla") == here["keras_xla"] and manifest["computes"] != _computes(executables):
        raise ValueError(
            f"{folder}: these executables were saved for another model, dtype or quantization. {_AGAIN}, from a layer "
            "like this one."
        )
    if differ := [_difference(name, there.get(name), here[name]) for name in here if there.get(name) != here[name]]:
        warn(
            f"keras_xla compiles again, for the executables in {folder} are not for here: {'; '.join(differ)}. "
            f"{_AGAIN} on such a machine."
        )
        return
    backend.prepare_to_read()
    for each in executables:
        each.kept.bundle = ExecutableCache(folder, sys.maxsize, keeps_all=True)


def _manifest(folder: pathlib.Path) -> dict:
    path = folder / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no {MANIFEST}; expected a folder that layer.save_compiled has made.")
    try:
        content = json.loads(path.read_text())
        if content["format"] == FORMAT and isinstance(content["computed_with"], dict) and "computes" in content:
            return content
        raise ValueError(f"its format is {content['format']!r}; expected {FORMAT}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). {_AGAIN}.") from error


def _difference(what: str, there: Any, here: str) -> str:
    if what == "keras_xla" or len(f"{there}{here}") > 300:  # digests, and all that a processor can do
        return f"another {what}"
    return f"{what} {there} there and {here} here"


def _computes(executables: Sequence[Executables]) -> str:
    return hashlib.sha256(repr([each.kept.computes() for each in executables]).encode()).hexdigest()
