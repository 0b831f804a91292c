"""What a table says of where its figures come from."""

import datetime
import pathlib

import keras
from decode import commit


def facts() -> dict[str, str]:
    """Date, commit, version of Keras and backend."""
    folder, date = pathlib.Path(__file__).parent, datetime.date.today().isoformat()
    return dict(date=date, commit=commit(folder), keras=keras.__version__, backend=keras.backend.backend())


def said() -> str:
    """The same as a part of a sentence."""
    known = facts()
    return f"{known['date']}, commit {known['commit']}, keras {known['keras']} on {known['backend']}"
