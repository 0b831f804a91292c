"""The folder in which keras_xla keeps things from run to run."""

import contextlib
import os
import pathlib
import tempfile
import uuid


def cache_folder() -> pathlib.Path:
    """Where keras_xla keeps things between runs: `$KERAS_XLA_CACHE`, or `keras_xla` in the user's cache folder."""
    chosen = os.environ.get("KERAS_XLA_CACHE")
    if chosen:
        return pathlib.Path(chosen)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(cache) / "keras_xla"
    try:
        return pathlib.Path.home() / ".cache" / "keras_xla"
    except RuntimeError:  # a container's user without a home
        return pathlib.Path(tempfile.gettempdir()) / f"keras_xla_{os.getuid()}"


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
    """Put a file in place whole: another process sees the old one or the new one."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
