"""Executables on disk, so that a second process need not compile what the first did.

Each is a file of its own, named by a hash of what it was compiled from and for, with a checksum of its content. It is
put in place whole: processes that write at the same time lose nothing, and one that is killed leaves nothing half
written. What is damaged is dropped and made again; a disk that is full or read-only costs a warning.
"""

import contextlib
import hashlib
import importlib
import numbers
import os
import pathlib
from dataclasses import dataclass
from typing import Any

from keras_xla.cache_folder import cache_folder, let_go_of_the_oldest, write_whole
from keras_xla.troubleshooting import explained, warn_once

MAGIC = b"keras_xla executable 1\n"
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class CacheSettings:
    """Where executables are kept on disk, and how many; what `compile_cache` returns.

    Attributes:
        folder: The folder (str). None for `executables` in the folder that the environment variable `KERAS_XLA_CACHE`
            names, or in `keras_xla` in the user's cache folder.
        max_bytes: The most bytes that all of them may take together. Those that were not used for longest go first.
        enabled: Whether executables are kept and read (bool).
    """

    folder: str | None = None
    max_bytes: int = 2**30
    enabled: bool = False


_settings = CacheSettings()
_told: set[tuple[str, pathlib.Path]] = set()


@explained
def compile_cache(
    folder: str | os.PathLike | None = None, *, max_bytes: int | None = None, enabled: bool = True
) -> CacheSettings:
    """Keep executables on disk, so that the next process reads them instead of compiling again.

    An executable is found again only for the same computation, shapes, versions, processor and settings. One that is
    damaged is dropped and made again. Those of text generation need no tracing either. Steps of `fit`, `evaluate` and
    `predict`, and functions of `keras_xla.jit`, are traced in each process.

    Nothing is kept unless this is called, because it changes the whole process: TensorFlow then writes every executable
    of the process into a temporary folder.

    Call this right after the imports. TensorFlow can be asked for it only before it has run its first operation. On a
    GPU, TensorFlow keeps none. On the JAX backend this turns on JAX's own cache, which keeps all that takes a second or
    more to compile; a cache folder that you have given JAX yourself stays as it is.

    Args:
        folder: Where they are kept (a path). By default `executables` in the folder that the environment variable
            `KERAS_XLA_CACHE` names, or in `keras_xla` in the user's cache folder. It is made when it is needed.
        max_bytes: The most bytes that all of them may take together (int), 1 GiB by default. Those that were not used
            for longest go first. On the JAX backend JAX's own cache may take as many beside them.
        enabled: False to neither read nor keep any from now on. A cache of JAX's that is on stays on.

    Returns:
        `CacheSettings`: the settings that now hold.

    Raises:
        ValueError: `max_bytes` is below 1.
        TypeError: It is no int.
        RuntimeError: TensorFlow has run something already, no folder for temporary files has room (512 MiB), the
            environment variable `TF_XLA_FLAGS` names a file, or the system does not tell what the processor can do.

    Example:
    ```python
    import keras_xla

    keras_xla.compile_cache("executables", max_bytes=10**9)  # before anything runs
    ```
    """
    global _settings
    if max_bytes is not None and not isinstance(max_bytes, numbers.Integral):
        kind = type(max_bytes).__name__
        raise TypeError(f"Received max_bytes={max_bytes!r} of type {kind}; expected an int of bytes, such as 10**9.")
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"Received max_bytes={max_bytes}; expected 1 or more. To keep nothing pass enabled=False.")
    if folder is not None:  # the process may go to another folder
        folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
    given: dict[str, Any] = {"folder": folder, "max_bytes": max_bytes}
    made = CacheSettings(**{name: x for name, x in given.items() if x is not None}, enabled=enabled)
    if enabled:
        import keras  # late: `import keras_xla` must not choose its backend

        importlib.import_module(f"keras_xla.backend.{keras.backend.backend()}.stored").keep_executables(_cache(made))
    _settings = made
    return made


def executable_cache() -> "ExecutableCache | None":
    """The cache that the settings name; None if it is off."""
    return _cache(_settings) if _settings.enabled else None


def _cache(settings: CacheSettings) -> "ExecutableCache":
    folder = pathlib.Path(settings.folder) if settings.folder else cache_folder() / "executables"
    return ExecutableCache(folder, settings.max_bytes)


class ExecutableCache:
    """Executables by key, in a folder that need not exist.

    Args:
        folder: The folder.
        max_bytes: That all of them may take.
        keeps_all: Whether none is ever dropped, not even what is damaged.
    """

    def __init__(self, folder: pathlib.Path, max_bytes: int, keeps_all: bool = False):
        self.folder, self.max_bytes, self._keeps_all = folder, max_bytes, keeps_all

    def get(self, key: str) -> bytes | None:
        """What is kept under a key, whole; None if there is nothing, or nothing that can be used."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", f"keras_xla cannot read the executables in {self.folder}, and compiles: {error}")
            return None
        start = len(MAGIC) + _DIGEST
        payload = content[start:]
        if content[:start] != MAGIC + hashlib.sha256(payload).digest():
            self.drop(key)
            self._warn(path.name, f"keras_xla does not read {path}, which is damaged, and compiles.")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return payload

    def put(self, key: str, payload: bytes) -> bool:
        """Keep it, unless it alone is more than may be kept, or the disk does not take it; whether it is kept."""
        content = MAGIC + hashlib.sha256(payload).digest() + payload
        if len(content) > self.max_bytes:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(key), content)
            let_go_of_the_oldest(self.folder, ".xla", self.max_bytes, lambda file: file.st_size)
        except OSError as error:
            self._warn("keep", f"keras_xla cannot keep executables in {self.folder}: {error}")
            return False
        return True

    def holds(self, key: str) -> bool:
        """Whether there is something under a key, whole or not."""
        return os.path.exists(self._path(key))  # False also where the folder may not be entered

    def drop(self, key: str) -> None:
        """Remove it."""
        if self._keeps_all:
            return
        with contextlib.suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> pathlib.Path:
        return self.folder / f"{key}.xla"

    def _warn(self, what: str, message: str) -> None:
        warn_once(_told, (what, self.folder), message)
