"""Traced functions whose executables are kept on disk.

A function gets a name that is a hash of what it computes and of the machine, so that the same computation has the same
name in every process, and nothing else has. TensorFlow's own persistent cache of executables, which goes by names, then
finds them again. That cache is not made for several processes or for files that were cut off, so it works in a folder
of this process, into which an executable is put before its function runs for the first time, and from which a new one
is taken after that.
"""

import contextlib
import hashlib
import pathlib
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from keras_xla.backend.executable_cache.cache import ExecutableCache, executable_cache
from keras_xla.backend.executable_cache.packing import pack, structure_from_json, structure_to_json, unpack
from keras_xla.backend.executable_cache.xla_flags import flags_file
from keras_xla.backend.tensorflow.graphs.definitions import compiled_one, under, with_called
from keras_xla.backend.tensorflow.graphs.graph import leaves_of, repack
from keras_xla.backend.tensorflow.machine import cpu_features, machine, on_gpu
from keras_xla.private.names import Gone
from keras_xla.private.tensorflow.graphs import definition, flat_call, named_function
from keras_xla.private.tensorflow.xla_folder import ask_for_it, folder_of_xla, is_of_the_user, move_folder
from keras_xla.troubleshooting import warn

_known: dict[str, "Stored"] = {}  # TensorFlow keeps their executables for as long as the process lives
_lock = threading.Lock()
_MOST_SETS = 8  # executables of one computation: it has one for each set of inputs that are sizes of arrays


def keep_executables(cache: ExecutableCache) -> None:
    """Let TensorFlow keep executables from now on; raises `RuntimeError` if it is too late, or cannot be."""
    if not cpu_features():
        raise RuntimeError(
            "Executables cannot be kept on this system: /proc/cpuinfo does not tell what the processor can do, so that "
            "one of another processor could be taken. Leave compile_cache() out."
        )
    ask_for_it()


def require_keeping() -> None:
    """Raise `RuntimeError` where the executables of this process are not kept, saying why."""
    if on_gpu():
        raise RuntimeError("TensorFlow keeps no executables for a GPU. On a GPU use the JAX backend.")
    if folder_of_xla() is None and is_of_the_user():
        raise RuntimeError(
            "TensorFlow keeps executables in a folder of your own, which TF_XLA_FLAGS names, and keras_xla has none of "
            "them. Take --tf_xla_persistent_cache_directory out of TF_XLA_FLAGS."
        )
    if folder_of_xla() is None:
        raise RuntimeError(
            "TensorFlow keeps no executables in this process. Call keras_xla.compile_cache() right after the imports, "
            "before anything runs."
        )


def prepare_to_read() -> None:
    """Let TensorFlow read executables from disk from now on; a warning if it is too late, or cannot be."""
    try:
        ask_for_it()
    except RuntimeError as error:
        warn(f"keras_xla reads traced functions, but XLA compiles them again. {error}")


class StoredFunction:
    """A traced function whose executable is kept on disk, to be called with its flat inputs.

    Args:
        stored: What it computes.
        outputs: Its outputs in their structure; the leaves are of no meaning.
        captured: Values that go in behind the inputs: handles of variables, say.
    """

    def __init__(self, stored: "Stored", outputs: Any, captured: Sequence[tf.Tensor] = ()):
        self._stored, self._outputs, self._captured = stored, outputs, list(captured)

    def __call__(self, inputs: list[tf.Tensor]) -> Any:
        """Its outputs in their structure."""
        return repack(self._outputs, self._stored([*inputs, *self._captured]))

    def keep(self, name: str, cache: ExecutableCache) -> bool:
        """Put it into a cache under a name, and its executable, which it has after a call; whether both are there."""
        leaves = range(len(tf.nest.flatten(self._outputs)))
        if self._captured or len(leaves) != len(leaves_of(self._outputs)):
            return False
        try:
            outputs = structure_to_json(tf.nest.pack_sequence_as(self._outputs, list(leaves)))
        except TypeError:
            return False
        graph = self._stored.graph().SerializeToString(deterministic=True)
        parts = {"graph": graph, "outputs": outputs, "digest": self._stored.digest.encode()}
        return self._stored.keep(cache) and cache.put(name, pack(parts))


def read_function(name: str, cache: ExecutableCache) -> StoredFunction | None:
    """What `StoredFunction.keep` has put into a cache under this name; None if nothing is there that can be used."""
    payload = None if on_gpu() else cache.get(name)
    if payload is None:
        return None
    parts, graph = unpack(payload), tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(parts["graph"])
        outputs, digest = structure_from_json(parts["outputs"]), parts["digest"].decode()
        if folder_of_xla() is not None and not any(each.holds(digest) for each in (cache, executable_cache()) if each):
            return None  # XLA would compile: then it is traced, too, and the compile log tells of it
        return StoredFunction(_stored(digest, list(graph.library.function), cache), outputs)
    except Gone:
        return None
    except Exception:  # protobuf has errors of its own
        cache.drop(name)
        return None


def keeps_executables() -> bool:
    """Whether executables of this process can be kept, and read."""
    return folder_of_xla() is not None and not on_gpu()


def stored(function: Any) -> Callable[[list[tf.Tensor]], Any]:
    """A traced function that XLA compiles, to be called with its flat inputs.

    Its executable is read from the cache of executables where it is there, and kept there otherwise: then it is a
    `StoredFunction`. One that runs on a GPU is only called quickly.
    """
    if not keeps_executables():
        return flat_call(function)
    try:
        return StoredFunction(stored_computation(function), function.structured_outputs, function.captured_inputs)
    except (Gone, KeyError, OSError):  # a function that is not all there, or flags that cannot be read
        return flat_call(function)


def stored_computation(function: Any, named: bool = False) -> "Stored":
    """What a traced function computes.

    Args:
        function: The function.
        named: Whether its operations have their names, for messages; then another computation has other names.

    Raises:
        Gone, KeyError: the function is not all there.
        OSError: flags that cannot be read.
    """
    return _stored(*by_hash(*definition(function), named))


def _stored(digest: str, definitions: list, source: ExecutableCache | None = None) -> "Stored":
    with _lock:
        if digest not in _known:
            _known[digest] = Stored(digest, definitions, source)
        return _known[digest]


class Stored:
    """One computation of this process, however many layers have it.

    Args:
        digest: Of the computation.
        definitions: `FunctionDef`s, of which the first is the one to call.
        source: A cache that may hold its executable, beside the cache of executables.
    """

    def __init__(self, digest: str, definitions: list, source: ExecutableCache | None = None):
        self.digest, self._definitions, self._source, self._ran = digest, definitions, source, False
        self._compiled = compiled_one(definitions)
        # What XLA compiles itself has to be called as training graphs call it, or it would be another executable.
        self._optimized = self._compiled == self.name
        self._call = named_function(definitions, self._optimized)
        self._lock = threading.RLock()
        self._users = 0  # for which TensorFlow may read `_handed` now
        self._handed: list[pathlib.Path] = []

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

    @property
    def name(self) -> str:
        """By which TensorFlow knows it."""
        return self._definitions[0].signature.name

    def graph(self) -> tf.compat.v1.GraphDef:
        """Its definitions."""
        graph = tf.compat.v1.GraphDef()
        graph.library.function.extend(self._definitions)
        return graph

    def keep(self, cache: ExecutableCache) -> bool:
        """Put its executable into a cache, unless it is there; whether it is there now."""
        for source in (cache, executable_cache(), self._source):
            if source is not None and (payload := source.get(self.digest)) is not None:
                return source.folder == cache.folder or cache.put(self.digest, payload)
        return False

    def _first(self, inputs):
        folder = folder_of_xla()
        if folder is None:  # TensorFlow was not asked for it in time
            return self._call(inputs)
        handed = self.hand_over(folder)
        try:
            outputs = self._call(inputs)
        except tf.errors.OpError as error:
            self.take_back()
            outputs = self._again(inputs, error, folder, handed)
            if handed:
                self.drop()
            return outputs
        self.take_over(folder)
        return outputs

    def hand_over(self, folder: pathlib.Path) -> bool:
        """Put its executable, if one is kept, where TensorFlow looks for it; whether there was one.

        Then `take_over` or `take_back` has to be called. Threads may share what is there.
        """
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._handed = _unpack(self._kept(), folder)
            return bool(self._handed)

    def take_back(self) -> None:
        """Remove what was handed over."""
        with self._lock:
            self._users -= 1
            while self._handed and not self._users:
                self._handed.pop().unlink(missing_ok=True)

    def take_over(self, folder: pathlib.Path) -> None:
        """Keep what TensorFlow has made, and remove it and what was handed over."""
        with self._lock:
            known = {path.name: path for path in self._handed}
            self.take_back()
            if self._users:
                return
            cache, made = executable_cache(), _made_by(self._compiled, folder)
            if cache is None or made.keys() <= known.keys():
                return
            # One for each set of the sizes among its inputs: the newest are kept.
            parts = {**unpack(self._kept()), **made} if known else made
            cache.put(self.digest, pack(dict(list(parts.items())[-_MOST_SETS:])))

    def drop(self) -> None:
        """Let go of an executable that TensorFlow could not use."""
        for source in (executable_cache(), self._source):
            if source is not None:
                source.drop(self.digest)

    def _kept(self) -> bytes:
        found = (source.get(self.digest) for source in (executable_cache(), self._source) if source is not None)
        return next((payload for payload in found if payload is not None), b"")

    def _again(self, inputs, error: tf.errors.OpError, folder: pathlib.Path, read: bool):
        """Once more under another name, if it was a file that TensorFlow could not use, or could not write."""
        # A read file may be to blame for any other error, which costs no more than a compilation if it is not.
        others = tf.errors.ResourceExhaustedError, tf.errors.CancelledError
        of_a_file = str(folder) in error.message or (read and not isinstance(error, others))
        if not of_a_file or not (read or move_folder(folder)):
            raise error
        with contextlib.suppress(tf.errors.OpError):
            call = named_function(under(self._definitions, f"kx_{self.digest}_again"), self._optimized)
            outputs = call(inputs)
            self._call = call
            return outputs
        raise error


def by_hash(top: Any, called: Iterable, named: bool = False) -> tuple[str, list]:
    """A digest of what a function computes on this machine, and it and what it calls under names made of that.

    The names that functions have in a process count what was traced before; here they count from the first one called.
    With `named`, operations keep their names, which are a part of what the digest is of.
    """
    plain = under(with_called(top, called), "f", named)
    content = b"".join(each.SerializeToString(deterministic=True) for each in plain)
    digest = hashlib.sha256(repr(sorted(compiled_for().items())).encode() + content).hexdigest()[:32]
    return digest, under(plain, f"kx_{digest}", named)


def compiled_for() -> dict[str, str]:
    """What an executable holds for, beside the computation: by name, as people read it.

    Raises:
        OSError: if XLA_FLAGS names a file that cannot be read.
    """
    content = flags_file()
    now, builds = machine(), f"{tf.version.GIT_VERSION} {tf.version.COMPILER_VERSION}"
    settings = f"{now['settings']} {content!r}" if content else now["settings"]
    return {**now, "versions": f"{now['versions']} {builds}", "settings": settings, "processor": cpu_features()}


def _made_by(compiled: str, folder: pathlib.Path) -> dict[str, bytes]:
    """The files of the compiled function of this name, which stand in the folder no longer."""
    made = {}
    for path in folder.glob("*.pb"):
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if f"{compiled}_".encode() in content or f"{compiled}[".encode() in content:
                made[path.name] = content
                path.unlink()
    return made


def _unpack(payload: bytes, folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that were packed, written into a folder; none if that does not go well."""
    parts = unpack(payload)
    if not all(re.fullmatch(r"[\w.-]+\.pb", name) for name in parts):
        return []
    paths = []
    try:
        for name, content in parts.items():
            paths.append(folder / name)
            paths[-1].write_bytes(content)
    except OSError:
        return []
    return paths
