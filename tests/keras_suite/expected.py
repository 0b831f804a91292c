"""The known differences, in `expected.toml`: which tests, with which error, and why that cannot be otherwise."""

import fnmatch
import pathlib
import re
import tomllib
from dataclasses import dataclass

FILE = pathlib.Path(__file__).with_name("expected.toml")


@dataclass(frozen=True)
class Expected:
    """Tests that plain Keras passes and that ours need not pass.

    Attributes:
        tests: A pattern for their names, as `fnmatch` has it.
        modes: In which.
        backends: On which.
        error: A regular expression that is found in what the tests say; another failure of theirs is not expected.
        reason: Why, for a person.
    """

    tests: str
    modes: tuple[str, ...]
    backends: tuple[str, ...]
    error: str
    reason: str

    def covers(self, backend: str, mode: str, test: str, text: str) -> bool:
        """Whether that failure is expected."""
        named = backend in self.backends and mode in self.modes and fnmatch.fnmatchcase(test, self.tests)
        return named and re.search(self.error, text) is not None


def expected(file: pathlib.Path = FILE) -> list[Expected]:
    """All of them."""
    entries = tomllib.loads(file.read_text()).get("difference", [])
    return [Expected(**{name: tuple(v) if isinstance(v, list) else v for name, v in e.items()}) for e in entries]
