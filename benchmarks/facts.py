"""What a table says of where its figures come from."""

import datetime
import pathlib
import subprocess


def commit(folder: pathlib.Path) -> str:
    """The short name of the commit that is checked out."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def facts() -> dict[str, str]:
    """Date, commit, version of Keras and backend."""
    import keras  # others start processes that do, and need no Keras here

    date = datetime.date.today().isoformat()
    here = commit(pathlib.Path(__file__).parent)
    return dict(date=date, commit=here, keras=keras.__version__, backend=keras.backend.backend())


def said() -> str:
    """The same as a part of a sentence."""
    known = facts()
    return f"{known['date']}, commit {known['commit']}, keras {known['keras']} on {known['backend']}"
