"""The folder in which keras_xla keeps things from run to run."""

import atexit
import contextlib
import functools
import os
import pathlib
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable

from keras_xla.troubleshooting import warn

try:
    _BEGUN_IN = pathlib.Path.cwd()  # the process may go to another folder
except FileNotFoundError:
    _BEGUN_IN = pathlib.Path()
_DEVICES = ("/dev", "/dev/fd", "/proc/self/fd")
_UNFINISHED = re.compile(r".+\.[0-9a-f]{32}\.new")  # files of `write_whole`
_SECONDS_A_WRITER_LIVES = 3600  # at most; a file that is not in place by then never will be


def cache_folder() -> pathlib.Path:
    """Where keras_xla keeps things between runs: `$KERAS_XLA_CACHE`, or `keras_xla` in the user's cache folder.

    A relative path is one from the folder that the process was in when it imported this. A user without a home, as in
    some containers, has a folder of their own where the system keeps temporary files.
    """
    chosen = os.environ.get("KERAS_XLA_CACHE")
    if chosen:
        with contextlib.suppress(RuntimeError):  # there is no such home: then the folder is called so
            return _BEGUN_IN / pathlib.Path(chosen).expanduser()  # no shell does that for what a container's file sets
        return _BEGUN_IN / chosen
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return _BEGUN_IN / cache / "keras_xla"
    try:
        return pathlib.Path.home() / ".cache" / "keras_xla"
    except RuntimeError:
        return _own_folder(pathlib.Path(tempfile.gettempdir()) / f"keras_xla_{os.getuid()}")


@functools.cache
def _own_folder(folder: pathlib.Path) -> pathlib.Path:
    """That folder, where all users may make one, if nobody else can write into it; else one for this process.

    What is kept there is run: of another user's folder nothing is read.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700)
    if not _others_may_write(folder):
        return folder
    warn(
        f"{folder} belongs to another user, or others may write into it: nothing is kept from run to run. Remove it, "
        "or set the environment variable KERAS_XLA_CACHE to a folder of your own."
    )
    other = tempfile.mkdtemp(prefix="keras_xla_")
    atexit.register(shutil.rmtree, other, ignore_errors=True)
    return pathlib.Path(other)


def _others_may_write(folder: pathlib.Path) -> bool:
    """Whether what is there may be another user's; no for what cannot be made, and so has nothing to read."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or bool(found.st_mode & 0o022)


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
    """Put a file in place whole: another process sees the old one or the new one.

    What a link points to is replaced, not the link. Into what is no file, such as /dev/stdout, the content is written.
    """
    content = content.encode() if isinstance(content, str) else content
    # /dev/stdout may be a file, which others write to.
    if str(path.absolute().parent) in _DEVICES or (path.exists() and not (path.is_file() or path.is_dir())):
        with path.open("ab") as file:
            file.write(content)
        return
    path = path.resolve()
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")  # as `_UNFINISHED` knows it
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def let_go_of_the_oldest(
    folder: pathlib.Path, suffix: str, most: int, size_of: Callable[[os.stat_result], int]
) -> None:
    """Remove what writers that were killed have left, and the oldest files until all together have the size `most`."""
    kept = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it
            found = path.stat()
            if path.suffix == suffix:
                kept.append((found.st_mtime, size_of(found), path))
            elif _UNFINISHED.fullmatch(path.name) and time.time() - found.st_mtime > _SECONDS_A_WRITER_LIVES:
                path.unlink()
    spare = most - sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if spare >= 0:
            return
        with contextlib.suppress(OSError):  # another user's, or a folder: it stays, and does not count
            path.unlink(missing_ok=True)
        spare += size
