"""The folder of this process in which TensorFlow keeps the executables of XLA.

TensorFlow reads `TF_XLA_FLAGS` once, before its first operation: `ask_for_it` must have been called by then. Other
processes that this one starts need not know of the folder. An executable that cannot be written is an error of
TensorFlow's, so the folder lies where there is room, and can be moved: TensorFlow knows a link to it.
"""

import atexit
import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from keras_xla.private.tensorflow import at_start

_FLAG = "--tf_xla_persistent_cache_directory"
_ROOM = 2**29  # bytes
_link: pathlib.Path | None = None
_asked = False


def ask_for_it() -> None:
    """Let TensorFlow have such a folder, unless the user has named one, or no disk has room."""
    global _asked
    if not _asked:
        _asked = True
        at_start(_flag)


def folder_of_xla() -> pathlib.Path | None:
    """The folder; None if TensorFlow does not know of it: it ran something before, or has one of the user's."""
    return _link


def move_folder() -> bool:
    """Have the folder on another disk; whether there is one with room."""
    here = _link.resolve()
    for parent in _with_room():
        if os.stat(parent).st_dev != os.stat(here.parent).st_dev:
            _point_at(_new(parent))
            shutil.rmtree(here, ignore_errors=True)
            return True
    return False


@contextlib.contextmanager
def _flag() -> Iterator[None]:
    global _link
    before = os.environ.get("TF_XLA_FLAGS")
    parents = _with_room()
    if _FLAG in (before or "") or not parents:
        yield
        return
    link = _new(tempfile.gettempdir()) / "executables"
    atexit.register(_remove, link)
    _link = link
    _point_at(_new(parents[0]))
    os.environ["TF_XLA_FLAGS"] = f"{before or ''} {_FLAG}={link}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TF_XLA_FLAGS"]
        else:
            os.environ["TF_XLA_FLAGS"] = before


def _with_room() -> list[str]:
    """Folders for temporary files on disks with room."""
    found = []
    for parent in (tempfile.gettempdir(), "/dev/shm", "/var/tmp"):
        with contextlib.suppress(OSError):
            if os.access(parent, os.W_OK) and shutil.disk_usage(parent).free >= _ROOM:
                found.append(parent)
    return found


def _new(parent: str) -> pathlib.Path:
    return pathlib.Path(tempfile.mkdtemp(prefix="keras_xla_", dir=parent))


def _point_at(folder: pathlib.Path) -> None:
    new = _link.with_name("new")
    new.symlink_to(folder, target_is_directory=True)
    os.replace(new, _link)


def _remove(link: pathlib.Path) -> None:
    shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(link.parent, ignore_errors=True)
