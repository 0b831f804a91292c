"""What the environment variable XLA_FLAGS says."""

import os
import pathlib


def flags_file() -> bytes:
    """The content of the file that it names; empty where it holds the flags themselves, or nothing.

    Raises:
        OSError: if the file cannot be read.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    return pathlib.Path(flags).read_bytes() if flags and not flags.startswith("-") else b""
