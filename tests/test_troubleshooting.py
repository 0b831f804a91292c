"""Every error and warning that a user can meet stands in docs/troubleshooting.md, word for word, and names its section.

What tests meet is looked up there, too, as it was said: `undocumented` in conftest.py.
"""

import ast
import dataclasses
import functools
import inspect
import pathlib
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest

import keras_xla
from keras_xla import troubleshooting
from keras_xla.troubleshooting import answer, explained, section_of, sections, warn

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "keras_xla"
PAGE = ROOT / "docs" / "troubleshooting.md"
# What shows a text to a user, beside an error. A `print` counts if it goes to standard error.
SPEAKERS = re.compile(
    r"(warn|parser\.error|sys\.exit|sys\.stderr\.write|tf\.debugging\.Assert|"
    r"log(ging|ger)?\.(debug|info|warning|error|exception|critical))$"
)
_AS_PYTHON = "what Python says of a name that is not there"
_KERAS_RUNS_IT = "caught: Keras' own function runs the steps then"
_ANOTHER = "caught, or told in another message: the text is that of another error"
# By file and a part of the text, or of the code where there is no text.
NOT_SHOWN = {
    ("__init__.py", "has no attribute"): _AS_PYTHON,
    ("callbacks.py", "has no attribute"): _AS_PYTHON,
    ("backend/executable_cache/packing.py", "this describes no structure"): "caught: all is compiled",
    ("backend/executable_cache/packing.py", "cannot be written down"): "caught: it is not kept",
    ("backend/executable_cache/packing.py", "KeyError(kind)"): "caught, as the first",
    ("generation/compiled.py", "its format is"): _ANOTHER,
    ("private/jax.py", "JAX cannot write this executable down"): "caught: it is not kept",
    ("private/jax.py", "JAX cannot read this executable"): "caught: all is compiled",
    ("backend/jax/step_loop.py", "numbers of the state have weak types"): _KERAS_RUNS_IT,
    ("backend/jax/step_loop.py", "the step does more than compute:"): _KERAS_RUNS_IT,
    ("backend/jax/step_loop.py", "convolutions are slower in a loop on CPU"): _KERAS_RUNS_IT,
    ("backend/jax/step_loop.py", "the step changes the types of its state"): _KERAS_RUNS_IT,
    ("troubleshooting.py", "warn(message)"): _ANOTHER,
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
    if called(node) == "warn_once":  # what was said, by what it is known, and the text
        return node.args[2:]
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


POINTER = "Cause and fix: python -m keras_xla --troubleshoot "
EMPTY = "Prompt 3 is empty; expected at least one token."


def troubleshoot(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "keras_xla", "--troubleshoot", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@explained
def complain(message: str = EMPTY):
    raise ValueError(message)


@explained
class Complaint:
    """A class whose errors are explained."""

    def __init__(self, works: bool = True):
        if not works:
            complain()

    def method(self, message: str = EMPTY):
        """A method that complains."""
        raise ValueError(message)

    @classmethod
    def of_class(cls):
        raise ValueError(EMPTY)

    @staticmethod
    def of_none():
        raise ValueError(EMPTY)

    def pieces(self, message: str = EMPTY):
        got = yield 1
        if got != "stop":
            raise ValueError(message)
        return 2

    def warns(self):
        warn("A third one.")

    def _hidden(self):
        raise ValueError(EMPTY)


def notes(function, *args) -> list[str]:
    with pytest.raises(Exception) as raised:
        function(*args)
    return getattr(raised.value, "__notes__", [])


@pytest.mark.parametrize(
    "function",
    (
        complain,
        Complaint().method,
        Complaint.of_class,
        Complaint.of_none,
        lambda: list(Complaint().pieces()),
        lambda: Complaint(works=False),  # which passes two that are explained
    ),
)
def test_an_error_says_once_how_to_read_more(function):
    assert notes(function) == [POINTER + "prompt-is-empty"]


def test_what_is_private_is_left_alone():
    assert notes(Complaint()._hidden) == []


def test_a_generator_that_is_explained_takes_and_returns_what_it_did():
    pieces = Complaint().pieces()
    assert next(pieces) == 1
    with pytest.raises(StopIteration) as end:
        pieces.send("stop")
    assert end.value.value == 2
    pieces = Complaint().pieces()
    next(pieces)
    pieces.close()


def test_what_is_explained_looks_as_before_to_who_asks():
    assert Complaint.method.__doc__ == "A method that complains."
    assert str(inspect.signature(Complaint)) == "(works: bool = True)"


def test_tracebacks_have_no_frame_of_the_decorator():
    try:
        list(Complaint().pieces())
    except ValueError as error:
        assert [each.name for each in traceback.extract_tb(error.__traceback__)][1:] == ["pieces"]
    try:
        complain()
    except ValueError as error:
        assert [each.name for each in traceback.extract_tb(error.__traceback__)][1:] == ["complain"]


@pytest.mark.parametrize("message", ("", "division by zero", "Received nothing that this page knows", "X" * 100_000))
def test_errors_of_others_are_left_as_they_are(message):
    assert notes(complain, message) == []
    assert notes(Complaint().method, message) == []


@pytest.mark.parametrize(
    "message",
    (
        "Received image of width=3; expected a square.",
        "Received w=3; expected a float.",
        "Received x=1; expected True or False.",
    ),
)
def test_texts_of_others_that_sound_like_ours_are_left_as_they_are(message):
    assert notes(complain, message) == []


def test_errors_and_warnings_come_through_where_the_page_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(troubleshooting, "_page", lambda: tmp_path / "troubleshooting.md")
    forget()
    assert notes(complain) == []
    with pytest.warns(UserWarning, match="^Another one.$"):
        warn("Another one.")
    forget()


def forget():
    troubleshooting.sections.cache_clear()
    troubleshooting._documented.cache_clear()


@dataclasses.dataclass(frozen=True)
class Unchangeable(Exception):
    message: str


class Odd(Exception):
    def __str__(self):
        raise ZeroDivisionError

    def __setattr__(self, name, value):
        raise ZeroDivisionError

    def add_note(self, note):
        raise ZeroDivisionError


@pytest.mark.parametrize("error", (Unchangeable(EMPTY), Odd(EMPTY), SystemExit(EMPTY), KeyboardInterrupt()), ids=repr)
def test_no_error_becomes_another(error):
    @explained
    def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        fail()
    assert raised.value is error


def test_warnings_say_how_to_read_more():
    message = (
        "model.gguf does not say how its tokenizer cuts text (tokenizer.ggml.pre is 'default'): using GPT-2's way."
    )
    with pytest.warns((UserWarning, DeprecationWarning)) as caught:
        warn(message + " If the model was trained with another, convert it to GGUF again.")
        warn("Another one.", DeprecationWarning)
        Complaint().warns()
    pointer = POINTER + "a-gguf-file-does-not-say-how-its-tokenizer-cuts-text"
    assert [str(each.message).partition("\n")[2] for each in caught] == [pointer, "", ""]
    assert [each.filename for each in caught] == [__file__] * 3
    assert caught[1].category is DeprecationWarning


def test_a_warning_can_be_an_error_still():
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="Another"):
        warnings.simplefilter("error")
        warn("Another one.")


@pytest.mark.parametrize("each", sections(), ids=lambda section: section.anchor)
def test_every_section_is_found_by_its_anchor_and_tells_what_to_do(each):
    assert answer(each.anchor) == each.text.strip()
    assert re.search(r"\*\*Fix\*\*|\*\*Fixes\*\*|nothing to do|need(s)? no|no fix", each.text, re.IGNORECASE), (
        each.title
    )


def test_anchors_are_unique():
    anchors = [section.anchor for section in sections()]
    assert len(anchors) == len(set(anchors)) > 150


def test_the_section_of_most_words_is_the_one():
    named = "Negative prompt 0 is empty; expected at least one token."
    assert section_of(named).anchor == "prompt-is-empty"
    lines = f"ValueError: {EMPTY}\n{POINTER}prompt-is-empty"  # pasted as Python prints it
    assert section_of(lines).anchor == "prompt-is-empty"


def test_quotes_may_be_of_either_kind():
    for name in (repr("ids"), repr("x['ids']")):
        text = f"keras_xla.bucket_lengths received {name} of rank 2, which has no axis 3 to pad."
        text += " Pass leaves=[...] without it, or another axis."
        assert section_of(text).anchor == "a-tensor-lacks-the-axis-to-pad"


@hypothesis.given(st.text())
@hypothesis.settings(max_examples=200)
def test_any_text_is_looked_up(text):
    section = section_of(text)
    assert section is None or section in sections()


def test_the_command_shows_a_section_by_anchor_message_or_words():
    section = section_of(EMPTY)
    asked = (["prompt-is-empty"], [EMPTY], EMPTY.split(), ["--quiet", "prompt-is-empty"], ["-m", "prompt-is-empty"])
    for words in (*asked, ["Prompt is empty"], [f"{POINTER}prompt-is-empty"]):
        assert troubleshoot(*words).stdout.strip() == section.text.strip()
    several = answer("grammar tokenizer")
    assert several.count("**Fix**") > 1


def test_the_command_lists_what_there_is():
    listed = troubleshoot().stdout
    assert all(f"{section.anchor}\n    {section.title}\n" in listed for section in sections())


def test_the_command_says_when_the_page_has_nothing():
    done = troubleshoot("no-such-section")
    assert done.returncode == 2 and "'no-such-section', of which docs/troubleshooting.md has nothing" in done.stderr


def test_the_command_does_one_thing():
    done = troubleshoot("prompt-is-empty", "--clear-decisions")
    assert done.returncode == 2 and "pass one of them" in done.stderr


def test_a_reader_may_stop_reading():
    command = f"{sys.executable} -m keras_xla --troubleshoot | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.count("\n") == 1 and "Traceback" not in done.stderr


def test_errors_of_the_layer_and_of_training_point_to_their_sections(undocumented):
    layers = [keras.layers.Embedding(50, 4), keras.layers.GRU(4, return_sequences=True), keras.layers.Dense(50)]
    layer = keras_xla.XLAGenerationLayer(keras.Sequential([keras.Input((None,), dtype="int32"), *layers]))
    assert notes(layer.generate, [[]]) == [POINTER + "prompt-is-empty"]
    assert notes(layer.stream, [[]]) == [POINTER + "prompt-is-empty"]
    for value in (0, "x", 1.5):
        bad = notes(lambda value: layer.generate([[1]], max_new_tokens=value), value)
        assert bad == [POINTER + "a-generation-option-has-a-wrong-value"]
    assert notes(layer.generate, [[50]]) == [POINTER + "token-ids-outside-of-the-vocabulary"]
    assert notes(lambda: keras_xla.callbacks.XLACompile("on")) == [POINTER + "jit_compile-has-an-unknown-value"]
    model = keras.Sequential([keras.Input((None, 1)), keras.layers.GlobalAveragePooling1D()])
    keras_xla.compile(model, "sgd", "mse")
    batches = ((np.zeros((2, length, 1)), np.zeros((2, 1))) for length in [4, 8] * 8 + [9])
    padded = keras_xla.bucket_lengths(batches, buckets=[4, 8])
    assert notes(lambda: model.fit(padded, verbose=0)) == [POINTER + "a-batch-is-longer-than-the-largest-bucket"]
    assert not undocumented


def test_an_error_of_keras_is_left_as_it_is():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    keras_xla.compile(model, "sgd", "mse")
    assert notes(lambda: model.fit(np.zeros((4, 3)), np.zeros((4, 1)), verbose=0)) == []
