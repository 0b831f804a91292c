"""What a table says of where its figures come from."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess

HERE = pathlib.Path(__file__).parent


def commit(folder: pathlib.Path) -> str:
    """The short name of the commit that is checked out.

    A copy of this checkout's files alone does not know it: there `KERAS_XLA_COMMIT` says it.
    """
    if folder == HERE and (named := os.environ.get("KERAS_XLA_COMMIT")):
        return named
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def facts() -> dict[str, str]:
    """Date, commit, version of Keras and backend."""
    import keras  # others start processes that do, and need no Keras here

    date = datetime.date.today().isoformat()
    here = commit(HERE)
    return dict(date=date, commit=here, keras=keras.__version__, backend=keras.backend.backend())


def cpu() -> str:
    """What the processor calls itself."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def measured(*packages: str) -> dict:
    """What a raw line tells of where it was measured; the packages are not imported."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    when = dict(date=datetime.date.today().isoformat(), commit=commit(HERE))
    return when | dict(cpu=cpu(), cores=os.cpu_count(), versions=versions)


def told(line: dict) -> str:
    """The same as a part of a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in line["versions"].items())
    return f"{line['date']}, commit {line['commit']}, {versions}, {line['cpu']}, {line['cores']} cores"
