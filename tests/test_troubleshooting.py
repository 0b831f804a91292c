"""Every error and warning that a user can meet stands in docs/troubleshooting.md, word for word."""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "keras_xla"
PAGE = ROOT / "docs" / "troubleshooting.md"
# What shows a text to a user, beside an error. A `print` counts if it goes to standard error.
SPEAKERS = re.compile(
    r"(warnings\.warn|parser\.error|sys\.exit|sys\.stderr\.write|tf\.debugging\.Assert|"
    r"log(ging|ger)?\.(debug|info|warning|error|exception|critical))$"
)
_AS_PYTHON = "what Python says of a name that is not there"
_KERAS_RUNS_IT = "caught: Keras' own function runs the steps then"
_ANOTHER = "caught, or told in another message: the text is that of another error"
# By file and a part of the text, or of the code where there is no text.
NOT_SHOWN = {
    ("__init__.py", "has no attribute"): _AS_PYTHON,
    ("callbacks.py", "has no attribute"): _AS_PYTHON,
    ("backend/packing.py", "this describes no structure"): "caught: the file is dropped, and all is compiled",
    ("backend/packing.py", "cannot be written down"): "caught: it is not kept",
    ("backend/packing.py", "KeyError(kind)"): "caught, as the first",
    ("generation/compiled.py", "its format is"): _ANOTHER,
    ("private/jax.py", "JAX cannot write this executable down"): "caught: it is not kept",
    ("private/jax.py", "JAX cannot read this executable"): "caught: the file is dropped, and all is compiled",
    ("backend/jax/step_loop.py", "numbers of the state have weak types"): _KERAS_RUNS_IT,
    ("backend/jax/step_loop.py", "the step does more than compute:"): _KERAS_RUNS_IT,
    ("backend/jax/step_loop.py", "convolutions are slower in a loop on CPU"): _KERAS_RUNS_IT,
    ("backend/jax/step_loop.py", "the step changes the types of its state"): _KERAS_RUNS_IT,
    ("backend/tensorflow/runner/ways.py", "NotSplittable(str(error))"): _ANOTHER,
    ("backend/tensorflow/runner/executable.py", "WayFailed(str(error), error.node)"): _ANOTHER,
    ("backend/tensorflow/runner/executable.py", "ShapesRefused(str(error))"): _ANOTHER,
    ("models/weights.py", "Received nothing to make a weight of"): "a mistake in keras_xla, not in what it was given",
    ("training/decide/decisions.py", "Times received"): "caught: the file is dropped with a warning that is documented",
}


class Message(NamedTuple):
    file: str
    line: int
    code: str
    parts: tuple[str, ...]  # the literal ones, in order; none where no literal was found

    def __str__(self):
        return f"{self.file}:{self.line}"


def literals(node: ast.AST) -> list[str]:
    """The literal parts of a text, without blanks around them; none for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [part for each in node.value.split("{}") if (part := " ".join(each.split()))]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in literals(value)]
    if isinstance(node, ast.BinOp):
        return literals(node.left) + literals(node.right)
    return []


class File:
    """One file: its functions by name, and who is inside of whom."""

    def __init__(self, path: pathlib.Path):
        self.name = path.relative_to(PACKAGE).as_posix()
        self.tree = ast.parse(path.read_text())
        self.functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}

    @functools.cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        """The functions around a node, innermost first, and the file."""
        while (node := self.parents.get(node)) is not None:
            if isinstance(node, (ast.FunctionDef, ast.Module)):
                yield node


@functools.cache
def files() -> tuple[File, ...]:
    return tuple(File(path) for path in sorted(PACKAGE.rglob("*.py")))


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def texts(file: File, node: ast.AST, depth: int = 4) -> Iterator[tuple[str, ...]]:
    """The texts that an expression may be: what it says, what its variables were given, what its functions return."""
    if parts := literals(node):
        yield tuple(parts)
    elif isinstance(node, (ast.List, ast.Tuple)):
        for each in node.elts:
            yield from texts(file, each, depth)
    elif isinstance(node, ast.IfExp):
        yield from texts(file, node.body, depth)
        yield from texts(file, node.orelse, depth)
    elif isinstance(node, ast.Call) and depth:
        for each in node.args:
            yield from texts(file, each, depth)
        if called(node) == "format":
            yield from texts(file, node.func.value, depth)
        for other in [file] if called(node) in file.functions else files():
            function = other.functions.get(called(node))
            for each in ast.walk(function) if function else ():
                if isinstance(each, ast.Return) and each.value is not None:
                    yield from texts(other, each.value, depth - 1)
    elif isinstance(node, ast.Name) and depth:
        yield from _given(file, node, depth - 1)


def _given(file: File, name: ast.Name, depth: int) -> Iterator[tuple[str, ...]]:
    """What a variable or a parameter is given."""
    for scope in file.scopes(name):
        parameters = [x.arg for x in scope.args.args] if isinstance(scope, ast.FunctionDef) else []
        if name.id in parameters:
            place = parameters.index(name.id) - (parameters[0] in ("self", "cls"))
            for call in ast.walk(file.tree):
                if isinstance(call, ast.Call) and called(call) == scope.name and len(call.args) > place:
                    yield from texts(file, call.args[place], depth)
            return
        found = [x for x in ast.walk(scope) if isinstance(x, ast.Assign) and _assigns(x, name.id)]
        for each in found:
            yield from texts(file, each.value, depth)
        if found:
            return


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def said(node: ast.AST) -> list[ast.AST] | None:
    """What an error or a warning is made of; None for other code. An error that goes on as it is says nothing new."""
    if isinstance(node, ast.Raise):
        return [node.exc] if isinstance(node.exc, ast.Call) else None
    if not isinstance(node, ast.Call):
        return None
    if ast.unparse(node.func) == "print":
        return node.args if any("stderr" in ast.unparse(keyword) for keyword in node.keywords) else None
    return node.args if SPEAKERS.match(ast.unparse(node.func)) else None


@functools.cache
def messages() -> tuple[Message, ...]:
    found = []
    for file in files():
        for node in ast.walk(file.tree):
            if (spoken := said(node)) is None:
                continue
            code = ast.unparse(node)
            all_texts = [each for part in spoken for each in texts(file, part)]
            found += [Message(file.name, node.lineno, code, each) for each in dict.fromkeys(all_texts) or [()]]
    return tuple(found)


def flat(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def blocks() -> tuple[str, ...]:
    """The text blocks of the page."""
    return tuple(map(flat, re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)))


def is_documented(message: Message) -> bool:
    """Whether one block has all literal parts of a message, in their order."""
    pattern = re.compile(".*?".join(map(re.escape, message.parts)))
    return bool(message.parts) and any(pattern.search(block) for block in blocks())


def exceptions_for(message: Message) -> list[tuple[str, str]]:
    text = " ".join(message.parts) or message.code
    return [key for key in NOT_SHOWN if key[0] == message.file and key[1] in text]


def test_every_message_is_documented():
    missing = [each for each in messages() if not is_documented(each) and not exceptions_for(each)]
    told = "\n".join(f"{each}: {' ... '.join(each.parts) or each.code}" for each in missing)
    assert not missing, f"docs/troubleshooting.md has no text block with\n{told}"


def test_the_exceptions_are_still_needed():
    used = {key for message in messages() if not is_documented(message) for key in exceptions_for(message)}
    assert set(NOT_SHOWN) == used


def advice() -> Iterator[str]:
    """What to do about layers and operations."""
    tree = ast.parse((PACKAGE / "diagnosis" / "advice.py").read_text())
    about = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if node not in about and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [node.value] if " " in node.value.strip() else []


def what_is_off() -> Iterator[str]:
    """What does not work without a name of another package."""
    for file in files():
        for node in ast.walk(file.tree):
            if file.name.startswith("private/") and isinstance(node, ast.Call) and called(node) == "Name":
                yield from (" ".join(parts) for parts in texts(file, node.args[3]))


@pytest.mark.parametrize("parts", (advice, what_is_off))
def test_parts_of_messages_are_documented(parts):
    page = flat(PAGE.read_text())
    assert len(list(parts())) > 10
    assert not [text for text in parts() if flat(text) not in page]
