"""The folder of this process in which TensorFlow keeps the executables of XLA.

TensorFlow reads `TF_XLA_FLAGS` once, before its first operation. Other processes that this one starts need not know of
the folder. An executable that cannot be written is an error of TensorFlow's, so the folder lies where there is room,
and can be moved: TensorFlow knows a link to it. A process that is killed cannot remove it; the next one does, which
finds that nobody holds the lock in it.
"""

import atexit
import contextlib
import importlib.util
import os
import pathlib
import shutil
import tempfile
import threading
from typing import Any

from keras_xla.private.tensorflow.graphs import at_start

# On Windows there is none, and nothing is removed for others.
fcntl: Any = importlib.import_module("fcntl") if importlib.util.find_spec("fcntl") else None

_FLAG = "--tf_xla_persistent_cache_directory"
_PREFIX, _LOCK = "keras_xla_executables_", "in_use"
_ROOM = 2**29  # bytes
_LITTLE_ROOM = 2**24  # that serves where no disk has more: one executable at a time stays in the folder
_link: pathlib.Path | None = None
_lock = threading.Lock()


def ask_for_it() -> None:
    """Let TensorFlow have such a folder; nothing happens if it has one, of ours or of the user's.

    Raises:
        RuntimeError: if TensorFlow has run something, or there is no room.
    """
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if _link is not None or is_of_the_user():
        return
    if flags and not flags.lstrip().startswith("-"):
        raise RuntimeError(f"Executables cannot be kept: TF_XLA_FLAGS names a file ({flags}). Write the flags into it.")
    folder = _make()
    try:
        at_start(f"{flags} {_FLAG}={folder}".strip(), lambda: _use(folder))
    except BaseException:
        _remove(folder, os.getpid())
        raise


def is_of_the_user() -> bool:
    """Whether TensorFlow keeps executables in a folder that the user has chosen."""
    return _FLAG in os.environ.get("TF_XLA_FLAGS", "")


def folder_of_xla() -> pathlib.Path | None:
    """The folder; None if TensorFlow does not know of it, or has not run anything."""
    return _link


def move_folder(link: pathlib.Path) -> bool:
    """Have the folder on another disk; whether there is one with room."""
    with _lock, contextlib.suppress(OSError):
        here = link.resolve()
        for parent in [*_with_room(), *_with_room(_LITTLE_ROOM)]:
            if os.stat(parent).st_dev != os.stat(here.parent).st_dev:
                _point(link, _new(parent))
                shutil.rmtree(here, ignore_errors=True)
                return True
    return False


def _make() -> pathlib.Path:
    """A link to a new folder where there is room."""
    try:
        link = _new(tempfile.gettempdir()) / "executables"
        _point(link, _new(_with_room()[0]))
    except (OSError, IndexError) as error:
        raise RuntimeError(f"Executables cannot be kept: no folder for temporary files has room ({error}).") from error
    atexit.register(_remove, link, os.getpid())
    return link


def _use(link: pathlib.Path) -> None:
    global _link
    _link = link


def _with_room(room: int = _ROOM) -> list[str]:
    """Folders for temporary files on disks with so many bytes of room."""
    found = []
    for parent in (tempfile.gettempdir(), "/dev/shm", "/var/tmp"):
        with contextlib.suppress(OSError):
            if os.access(parent, os.W_OK) and shutil.disk_usage(parent).free >= room:
                found.append(parent)
    return found


def _new(parent: str) -> pathlib.Path:
    """A folder that is in use for as long as this process lives, or one that it was forked into."""
    _remove_unused(parent)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a disk without locks
            new = folder / f"{_LOCK}.new"  # it has its name once it is locked
            fcntl.flock(os.open(new, os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(new, folder / _LOCK)
    return folder


def _remove_unused(parent: str) -> None:
    """Remove what processes that were killed have left."""
    for path in pathlib.Path(parent).glob(f"{_PREFIX}*/{_LOCK}") if fcntl is not None else ():
        with contextlib.suppress(OSError):  # it is in use, or has just been removed
            if path.parent.lstat().st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)


def _point(link: pathlib.Path, folder: pathlib.Path) -> None:
    new = link.with_name("new")
    new.symlink_to(folder, target_is_directory=True)
    os.replace(new, link)


def _remove(link: pathlib.Path, owner: int) -> None:
    if os.getpid() == owner:  # and no child that it was forked into
        shutil.rmtree(link.resolve(), ignore_errors=True)
        shutil.rmtree(link.parent, ignore_errors=True)
