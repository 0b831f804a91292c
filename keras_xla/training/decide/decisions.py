"""What earlier runs measured, kept on disk so that the next run starts decided."""

import json
import os
import pathlib
import tempfile
import warnings
from typing import Any

FORMAT = 1


def cache_folder() -> pathlib.Path:
    """Where keras_xla keeps things between runs: `$KERAS_XLA_CACHE`, or `keras_xla` in the user's cache folder."""
    chosen = os.environ.get("KERAS_XLA_CACHE")
    if chosen:
        return pathlib.Path(chosen)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "keras_xla"


class Decisions:
    """A dictionary on disk, read at the first look and written whole at every change.

    A file that cannot be read counts as empty, and one that cannot be written is left as it is; both with a warning.

    Args:
        path: The JSON file.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path

    def get(self, key: str) -> dict[str, Any] | None:
        """What is known under this key."""
        return self._read().get(key)

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Remember it."""
        entries = {**self._read(), key: value}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".json", delete=False) as file:
                json.dump({"format": FORMAT, "entries": entries}, file, indent=1)
            os.replace(file.name, self.path)  # another process sees the old file or the new one
        except OSError as error:
            warnings.warn(f"keras_xla could not remember a decision in {self.path}: {error}", stacklevel=2)

    def _read(self) -> dict[str, dict]:
        try:
            content = json.loads(self.path.read_text())
            return content["entries"] if content["format"] == FORMAT else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"keras_xla could not read {self.path} and starts without it: {error!r}", stacklevel=2)
            return {}


def decisions() -> Decisions:
    """The decisions of `jit_compile="auto"` on this machine."""
    return Decisions(cache_folder() / "decisions.json")
