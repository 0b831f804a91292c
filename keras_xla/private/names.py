"""A name that another package does not promise; where it is gone, one warning says what is off."""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras_xla.troubleshooting import warn_once

KERAS_SEEN = "Keras 3.12 to 3.15.1 and 3.16.0.dev2026102704"  # the versions in which the names of Keras 3 were seen
_TOLD: set[str] = set()


class Gone(RuntimeError):
    """A package does not have a name, or not what was known by it, in the version that is installed."""


@dataclass(frozen=True)
class Name:
    """One name.

    Attributes:
        owner: What has it, from its package on: `"keras.Layer"`.
        name: The name.
        gives: What it is for.
        off: What is off without it, as a sentence.
        seen: The versions of the package that have it.
        takes: Keywords of a method that are used.
    """

    owner: str
    name: str
    gives: str
    off: str
    seen: str
    takes: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.owner}.{self.name}"

    def of(self, x: Any) -> Any:
        """What `x` has under that name.

        Raises:
            Gone: It has none, or one that takes other keywords; the first time with a warning.
        """
        try:
            found = getattr(x, self.name)
            if self.takes:
                inspect.signature(found).bind_partial(**dict.fromkeys(self.takes))
        except (AttributeError, TypeError):
            raise self.gone() from None
        return found

    def of_module(self) -> Any:
        """What the module that has it has under that name: one that its package has imported.

        Raises:
            Gone: See `of`.
        """
        return self.of(sys.modules.get(self.owner))

    def gone(self) -> Gone:
        """The error to raise; the first time it warns, too."""
        package = self.owner.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", "")
        keywords = f"({', '.join(self.takes)})" if self.takes else ""
        what = f"{package} {version} has no {self}{keywords}, as {self.seen} have it, so that {self.off}"
        warn_once(
            _TOLD,
            str(self),
            f"keras_xla: {what}. All else works. To have that, too, install a version of {package} that keras_xla "
            "was tested with, or a newer keras_xla.",
        )
        return Gone(what)


def otherwise(value: Any) -> Callable:
    """Decorates a function that answers whether to do more than plain Keras would: `value` where a name is gone."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def answer(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except Gone:
                return value

        return answer

    return decorate
