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
import os
import pathlib
import re
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from keras_xla.backend.executable_cache import executable_cache
from keras_xla.backend.tensorflow.machine import cpu_features, machine, on_gpu
from keras_xla.private.names import Gone
from keras_xla.private.tensorflow import definition, flat_call, named_function
from keras_xla.private.xla_folder import folder_of_xla, move_folder

_known: dict[str, "Stored"] = {}  # TensorFlow keeps their executables for as long as the process lives
_lock = threading.Lock()


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
            call = named_function(_under(self._definitions, f"kx_{self.digest}_again"))
            outputs = call(inputs)
            self._call = call
            return outputs
        raise error


def by_hash(top: Any, called: Iterable) -> tuple[str, list]:
    """A digest of what a function computes on this machine, and it and what it calls under names made of that.

    The names that functions have in a process count what was traced before; here they count from the first one called.
    """
    known = {each.signature.name: each for each in (*called, top)}
    names = [top.signature.name]
    for name in names:  # which grows
        names += dict.fromkeys(other for other in _called_by(known[name]) if other in known and other not in names)
    plain = _under([known[name] for name in names], "f")
    content = b"".join(each.SerializeToString(deterministic=True) for each in plain)
    digest = hashlib.sha256(_for_what().encode() + content).hexdigest()[:32]
    return digest, _under(plain, f"kx_{digest}")


@functools.cache
def _for_what() -> str:
    """What an executable holds for, beside the computation."""
    flags = os.environ.get("XLA_FLAGS", "").strip()
    content = pathlib.Path(flags).read_bytes() if flags and not flags.startswith("-") else b""  # it may name a file
    builds = tf.version.GIT_VERSION, tf.version.COMPILER_VERSION
    return repr((sorted(machine().items()), cpu_features(), builds, content))


def _called_by(function: Any) -> Iterable[str]:
    for node in function.node_def:
        yield node.op
        for name in sorted(node.attr):
            value = node.attr[name]
            yield value.func.name
            yield from (each.name for each in value.list.func)


def _under(functions: list, name: str) -> list:
    """Functions that call one another, under other names: the name and a number."""
    names = {each.signature.name: f"{name}_{i}" for i, each in enumerate(functions)}
    return [_renamed(each, names) for each in functions]


def _renamed(function: Any, names: dict[str, str]) -> Any:
    """A function under another name that calls others by theirs; what is inside is named by its number."""
    copy = type(function)()
    copy.CopyFrom(function)
    signature = copy.signature
    signature.name = names[signature.name]
    inside = {arg.name: f"a{i}" for i, arg in enumerate(signature.input_arg)}
    inside |= {node.name: f"n{i}" for i, node in enumerate(copy.node_def)}
    for arg in signature.input_arg:
        arg.name = inside[arg.name]
    for node in copy.node_def:
        node.name, node.op = inside[node.name], names.get(node.op, node.op)
        node.input[:] = [_reference(each, inside) for each in node.input]
        node.ClearField("experimental_debug_info")
        for name in ("_class", "_gradient_op_type"):  # where it would stand, which gradient it would have
            node.attr.pop(name, None)
        for value in node.attr.values():
            for each in (*([value.func] if value.HasField("func") else []), *value.list.func):
                each.name = names.get(each.name, each.name)
    for output, source in function.ret.items():
        copy.ret[output] = _reference(source, inside)
    effects = [function.control_ret[name] for name in signature.control_output]
    signature.control_output[:] = [f"c{i}" for i in range(len(effects))]
    copy.control_ret.clear()
    copy.control_ret.update({f"c{i}": inside[node] for i, node in enumerate(effects)})
    return copy


def _reference(text: str, names: dict[str, str]) -> str:
    """`"node:output:0"`, `"argument"` or `"^node"`, under other names."""
    mark = "^" if text.startswith("^") else ""
    name, colon, rest = text.removeprefix("^").partition(":")
    return f"{mark}{names[name]}{colon}{rest}"


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
    return b"".join(
        struct.pack("<HQ", len(name), len(content)) + name.encode() + content for name, content in files.items()
    )


def _unpack(payload: bytes, folder: pathlib.Path) -> list[pathlib.Path]:
    """The files of `_pack`, written into a folder; none if that does not go well."""
    at, written = 0, []
    try:
        while at < len(payload):
            named, size = struct.unpack_from("<HQ", payload, at)
            at += struct.calcsize("<HQ")
            name = payload[at : at + named].decode()
            if not re.fullmatch(r"[\w.-]+\.pb", name):
                return []
            written.append(folder / name)
            written[-1].write_bytes(payload[at + named : at + named + size])
            at += named + size
    except (struct.error, OSError, UnicodeDecodeError):
        return []
    return written


def _of_an_operation(error: tf.errors.OpError) -> bool:
    """Whether an operation has refused its inputs, which it would do again."""
    return "{{node" in error.message or isinstance(error, (tf.errors.ResourceExhaustedError, tf.errors.CancelledError))
