"""What a table says of where its figures come from."""

import datetime
import pathlib

import keras
from decode import commit


def facts() -> dict[str, str]:
    """Commit, version of Keras and backend."""
    folder = pathlib.Path(__file__).parent
    return dict(commit=commit(folder), keras=keras.__version__, backend=keras.backend.backend())


def said() -> str:
    """The same with today's date, as a part of a sentence."""
    known = facts()
    return f"{datetime.date.today()}, commit {known['commit']}, keras {known['keras']} on {known['backend']}"
