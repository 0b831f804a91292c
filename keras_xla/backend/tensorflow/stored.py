"""Traced functions whose executables are kept on disk.

A function gets a name that is a hash of what it computes and of the machine, so that the same computation has the same
name in every process, and nothing else has. TensorFlow's own persistent cache of executables, which goes by names, then
finds them again. That cache is not made for several processes or for files that were cut off, so it works in a folder
of this process, into which an executable is put before its function runs for the first time, and from which a new one
is taken after that.
"""

import contextlib
import functools
import hashlib
import io
import os
import pathlib
import re
import threading
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from keras_xla.backend.executable_cache import ExecutableCache, executable_cache
from keras_xla.backend.tensorflow.graphs.definitions import under, with_called
from keras_xla.backend.tensorflow.machine import cpu_features, machine, on_gpu
from keras_xla.private.names import Gone
from keras_xla.private.tensorflow import definition, flat_call, named_function
from keras_xla.private.xla_folder import ask_for_it, folder_of_xla, move_folder

_known: dict[str, "Stored"] = {}  # TensorFlow keeps their executables for as long as the process lives
_lock = threading.Lock()


def keep_executables(cache: ExecutableCache) -> None:
    """Let TensorFlow keep executables from now on; raises `RuntimeError` if it is too late, or cannot be."""
    if not cpu_features():
        raise RuntimeError(
            "Executables cannot be kept on this system: /proc/cpuinfo does not tell what the processor can do, so that "
            "one of another processor could be taken. Leave compile_cache() out."
        )
    ask_for_it()


def stored(function: Any) -> Callable[[list[tf.Tensor]], Any]:
    """A traced function that XLA compiles, to be called with its flat inputs.

    Its executable is read from the cache of executables where it is there, and kept there otherwise. A function that
    captures values, or runs on a GPU, is only called quickly.
    """
    if folder_of_xla() is None or on_gpu() or function.captured_inputs:
        return flat_call(function)
    try:
        found = _stored(*definition(function))
    except (Gone, KeyError, OSError):  # a function that is not all there, or flags that cannot be read
        return flat_call(function)
    structure = function.structured_outputs
    if any(x is None for x in tf.nest.flatten(structure)):
        return flat_call(function)
    return lambda inputs: tf.nest.pack_sequence_as(structure, found(inputs))


def _stored(top: Any, called: list) -> "Stored":
    digest, definitions = by_hash(top, called)
    with _lock:
        if digest not in _known:
            _known[digest] = Stored(digest, definitions)
        return _known[digest]


class Stored:
    """One computation of this process, however many layers have it.

    Args:
        digest: Of the computation.
        definitions: `FunctionDef`s, of which the first is the one to call.
    """

    def __init__(self, digest: str, definitions: list):
        self.digest, self._definitions, self._ran = digest, definitions, False
        self._call = named_function(definitions)
        self._lock = threading.Lock()

    def __call__(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """Its outputs, flat."""
        if self._ran:
            return self._call(inputs)
        with self._lock:  # a thread that comes now would compile, too
            if self._ran:
                return self._call(inputs)
            outputs = self._first(inputs)
            self._ran = True
            return outputs

    def _first(self, inputs):
        cache, folder = executable_cache(), folder_of_xla()
        payload = None if cache is None else cache.get(self.digest)
        read = _unpack(payload or b"", folder)
        try:
            outputs = self._call(inputs)
        except tf.errors.OpError as error:
            outputs = self._again(inputs, error, folder, bool(read))
            if cache is not None and read:
                cache.drop(self.digest)
            return outputs
        for path in read:
            path.unlink(missing_ok=True)
        if cache is not None and not read and (made := _made_by(self.digest, folder)):
            cache.put(self.digest, _pack(made))
        return outputs

    def _again(self, inputs, error: tf.errors.OpError, folder: pathlib.Path, read: bool):
        """Once more under another name, if it was a file that TensorFlow could not use, or could not write."""
        of_a_file = str(folder) in error.message or (read and not _of_an_operation(error))
        if not of_a_file or not (read or move_folder(folder)):
            raise error
        with contextlib.suppress(tf.errors.OpError):
            call = named_function(under(self._definitions, f"kx_{self.digest}_again"))
            outputs = call(inputs)
            self._call = call
            return outputs
        raise error


def by_hash(top: Any, called: Iterable) -> tuple[str, list]:
    """A digest of what a function computes on this machine, and it and what it calls under names made of that.

    The names that functions have in a process count what was traced before; here they count from the first one called.
    """
    plain = under(with_called(top, called), "f")
    content = b"".join(each.SerializeToString(deterministic=True) for each in plain)
    digest = hashlib.sha256(_for_what().encode() + content).hexdigest()[:32]
    return digest, under(plain, f"kx_{digest}")


@functools.cache
def _for_what() -> str:
    """What an executable holds for, beside the computation."""
    flags = os.environ.get("XLA_FLAGS", "").strip()
    content = pathlib.Path(flags).read_bytes() if flags and not flags.startswith("-") else b""  # it may name a file
    builds = tf.version.GIT_VERSION, tf.version.COMPILER_VERSION
    return repr((sorted(machine().items()), cpu_features(), builds, content))


def _made_by(digest: str, folder: pathlib.Path) -> dict[str, bytes]:
    """The files of the function with this digest, which stand in the folder no longer."""
    made = {}
    for path in folder.glob("*.pb"):
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if f"kx_{digest}_0".encode() in content:
                made[path.name] = content
                path.unlink()
    return made


def _pack(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # without the time: equal bytes, whatever the clock says
    return packed.getvalue()


def _unpack(payload: bytes, folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of `_pack`, written into a folder; none if that does not go well."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            names = archive.namelist()
            if not all(re.fullmatch(r"[\w.-]+\.pb", name) for name in names):
                return []
            return [pathlib.Path(archive.extract(name, folder)) for name in names]
    except (zipfile.BadZipFile, OSError):
        return []


def _of_an_operation(error: tf.errors.OpError) -> bool:
    """Whether an operation has refused its inputs, which it would do again."""
    return "{{node" in error.message or isinstance(error, (tf.errors.ResourceExhaustedError, tf.errors.CancelledError))
