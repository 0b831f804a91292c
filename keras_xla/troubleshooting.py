"""Where errors and warnings are explained: a page of the documentation, which the wheel brings along."""

import contextlib
import functools
import inspect
import pathlib
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeVar

from keras_xla.tracebacks import FOLDER, hide_ours

OPTION = "--troubleshoot"
_POINTER = f"Cause and fix: python -m keras_xla {OPTION} "
_FEWEST_CHARACTERS = 16  # of a documented message, without its placeholders
_LEAST_OF_OTHERS = 40  # where it may be another's: their texts have the others' words, too
_MOST_READ = 20_000  # characters of a message
_Explained = TypeVar("_Explained", bound=Callable)


class Section(NamedTuple):
    """A section of the page: what a message says, why, and what to do."""

    title: str
    text: str

    @property
    def anchor(self) -> str:
        """Its name in a link."""
        return _anchor(self.title)

    def messages(self) -> Iterator[tuple[str, ...]]:
        """The messages, each as its literal parts: what stands around the `<placeholders>`."""
        for block in re.findall(r"^```text\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE):
            for message in re.split(r"\n(?! )", block.strip()):  # one that goes on in the next line is indented there
                yield tuple(part for each in re.split(r"<[^<>]*>", message) if (part := _flat(each)))


def _anchor(title: str) -> str:
    """As MkDocs and GitHub make it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


@functools.cache
def sections() -> tuple[Section, ...]:
    """All of the page, in its order."""
    found = re.split(r"^### ", _page().read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return tuple(Section(each.partition("\n")[0], re.split(r"^## ", each, flags=re.MULTILINE)[0]) for each in found)


def _page() -> pathlib.Path:
    """In the wheel beside this file, in a checkout in its `docs`."""
    here = pathlib.Path(__file__)
    page = here.with_suffix(".md")
    return page if page.exists() else here.parents[1] / "docs" / page.name


def section_of(message: str, least: int = 0) -> Section | None:
    """The section with a message: of those whose literal parts are all in it, in order, the most literal one.

    Args:
        message: What was said, also in the middle of other text.
        least: How many literal characters it must have.
    """
    text, found, most = _flat(message[:_MOST_READ]), None, max(_FEWEST_CHARACTERS, least) - 1
    for section, parts, characters in _documented():
        if characters > most and _are_in(parts, text):
            found, most = section, characters
    return found


@functools.cache
def _documented() -> list[tuple[Section, tuple[str, ...], int]]:
    return [(section, parts, sum(map(len, parts))) for section in sections() for parts in section.messages()]


def _are_in(parts: tuple[str, ...], text: str) -> bool:
    end = 0
    for part in parts:
        begin = text.find(part, end)
        if begin < 0:
            return False
        end = begin + len(part)
    return True


def _flat(text: str) -> str:
    """In one line, with one kind of quotes: a name with one kind in it is shown in the other."""
    return " ".join(text.split()).replace('"', "'")


def answer(question: str) -> str | None:
    """What the page says on an anchor, a message or a few words; of no words its titles, and None if it says nothing.

    Args:
        question: What the user asks for, as written on the command line.
    """
    known = {section.anchor: section for section in sections()}
    words = question.lower().split()
    if not words:
        return "\n".join(f"{anchor}\n    {section.title}" for anchor, section in known.items())
    named = known.get(words[-1].lstrip("#")) or known.get(_anchor(question))  # the command, say, as an error shows it
    exact = named or section_of(question)
    found = [exact] if exact else [each for each in sections() if all(word in each.text.lower() for word in words)]
    asked = " ".join(words)
    found.sort(key=lambda each: (asked not in each.title.lower(), asked not in " ".join(each.text.lower().split())))
    return "\n\n".join(section.text.strip() for section in found) or None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """`warnings.warn` at the line that called keras_xla, with the command that shows the section of the message."""
    pointer = _pointer(message)
    warnings.warn(f"{message}\n{pointer}" if pointer else message, category, stacklevel=_users_frame())


def warn_once(said: set, what: Hashable, message: str) -> None:
    """`warn`, unless `what` is among what was `said`; then it is."""
    if what not in said:
        said.add(what)
        warn(message)


def _users_frame() -> int:
    """How far above the caller the first frame is that is not of this package, as `warnings.warn` counts."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(FOLDER):
        frame, level = frame.f_back, level + 1
    return level


def point(error: BaseException) -> None:
    """Note on an error with which command the page shows its section; once, and not on what the page has not."""
    with contextlib.suppress(Exception):  # of an error that takes no notes, or has no text
        noted = any(str(note).startswith(_POINTER) for note in getattr(error, "__notes__", ()))
        pointer = "" if noted else _pointer(str(error), _LEAST_OF_OTHERS if _is_of_others(error) else 0)
        if pointer:
            error.add_note(pointer)


def _is_of_others(error: BaseException) -> bool:
    """Whether not this package has raised an error; one that Keras has made of ours is Keras' own."""
    return not [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1].f_code.co_filename.startswith(FOLDER)


def _pointer(text: str, least: int = 0) -> str:
    """The command that shows the section of a text, if there is one; also where the page cannot be read."""
    try:
        section = section_of(text, least)
    except (OSError, UnicodeError):  # the package was copied without it
        return ""
    return _POINTER + section.anchor if section else ""


def _tell(error: BaseException) -> None:
    point(error)
    hide_ours(error)


def explained(what: _Explained) -> _Explained:
    """Decorate what users call: errors that leave it have the note of `point`, and show no frames of ours.

    Of a class it is the public methods.
    """
    if isinstance(what, type):
        for name, method in list(vars(what).items()):
            if name in ("__init__", "__call__", "__getitem__") or not name.startswith("_"):
                if isinstance(method, types.FunctionType):
                    setattr(what, name, explained(method))
                elif isinstance(method, (classmethod, staticmethod)):
                    setattr(what, name, type(method)(explained(method.__func__)))
        return what
    explain = _explained_generator if inspect.isgeneratorfunction(what) else _explained_function
    made = functools.wraps(what)(explain(what))
    vars(made)["__signature__"] = inspect.signature(what)  # `getfullargspec`, with which Keras asks, looks for no other
    return made  # type: ignore[return-value]


def _explained_generator(what: Callable) -> Callable:
    def generate(*args: Any, **kwargs: Any) -> Any:
        try:
            return (yield from what(*args, **kwargs))
        except Exception as error:
            _tell(error)
            raise

    return generate


def _explained_function(what: Callable) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return what(*args, **kwargs)
        except Exception as error:
            _tell(error)
            raise
        except KeyboardInterrupt as error:
            hide_ours(error)
            raise

    return call
