"""Every example in the docstrings of the public names runs, and every public name has what a reference needs."""

import functools
import inspect
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla import XLAGenerationLayer, callbacks
from keras_xla.backend.executable_cache.cache import CacheSettings
from keras_xla.config import GenerationOptions
from keras_xla.diagnosis.explain import Blocker, Explanation
from keras_xla.engine.scorer import Logprobs
from keras_xla.engine.states.prompt_cache import SavedPrompt
from keras_xla.functions.hf_generate import CompiledGenerate
from keras_xla.functions.jit import CompiledFunction
from keras_xla.generation.speech.options import SpeechOptions
from keras_xla.generation.speech.transcripts import Segment, Transcript
from keras_xla.generation.text.chat import Chat
from keras_xla.generation.text.logprobs import ScoredText, perplexity
from keras_xla.generation.text.options import TextOptions
from keras_xla.models.interface import ChunkDecoder, Decoder, EncoderDecoder, View
from keras_xla.training.data.move_to_pipeline import Preprocess
from keras_xla.training.reports.journal import Compilation, Decision, Snapshot, Tally
from keras_xla.training.reports.model_report import ModelReport
from keras_xla.training.reports.period import Period

ROOT = pathlib.Path(__file__).parent.parent
HUB_NAME = "openai-community/gpt2"  # in examples; a tiny model in a folder stands in for it
MAIN_METHODS = ["chat", "check", "from_pretrained", "generate", "quantize", "save_prompt", "score", "stream", "warmup"]
MAIN_METHODS += ["save_compiled", "load_compiled"]
GIVEN = [  # what public functions take or return, or what is implemented for them
    *(Blocker, CacheSettings, Chat, ChunkDecoder, Compilation, CompiledFunction, CompiledGenerate, Decision, Decoder),
    *(EncoderDecoder, Explanation, GenerationOptions, Logprobs, ModelReport, Period, Preprocess, SavedPrompt),
    *(ScoredText, Segment, Snapshot, SpeechOptions, Tally, TextOptions, Transcript, View, perplexity),
]
TOP = {
    **{name: getattr(keras_xla, name) for name in keras_xla.__all__},
    **{f"callbacks.{name}": getattr(callbacks, name) for name in callbacks.__all__},
}
PUBLIC = {**TOP, **{each.__name__: each for each in GIVEN}}
# TensorFlow is asked to keep executables before it runs anything.
ALONE = ("compile_cache", "XLAGenerationLayer.save_compiled", "XLAGenerationLayer.load_compiled")
_HAS_A_DOCSTRING = (types.FunctionType, property, classmethod, staticmethod, functools.cached_property)


def members(name, kind):
    """The public methods and properties of a class that are ours, those of its mix-ins among them, by their names."""
    for attribute in dir(kind):
        owner = next((each for each in kind.__mro__ if attribute in vars(each)), None)
        if attribute.startswith("_") or owner is None or not owner.__module__.startswith("keras_xla."):
            continue
        if isinstance(member := vars(owner)[attribute], _HAS_A_DOCSTRING):
            yield f"{name}.{attribute}", member


def documented():
    """Every public name and what stands behind it."""
    for name, value in PUBLIC.items():
        yield name, value
        if inspect.isclass(value):
            yield from members(name, value)


def examples(value):
    return re.findall(r"```python\n(.*?)```", inspect.cleandoc(value.__doc__ or ""), re.DOTALL)


EXAMPLES = [(name, code) for name, value in documented() for code in examples(value)]
# Two that take long, of what `tests/generation/test_compiled.py` shows, too.
SLOW = ("XLAGenerationLayer.save_compiled", "XLAGenerationLayer.load_compiled")
RUN = [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] in SLOW), id=each[0]) for each in EXAMPLES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a tiny GPT-2 with random weights, and its tokenizer."""
    from tests import reference
    from tests.tokenizers import tiny

    path = reference.folder("gpt2", tmp_path_factory.mktemp("docstrings"))
    tiny().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def layer(folder):
    from tests.tokenizers import tiny

    return XLAGenerationLayer.from_pretrained(folder, tokenizer=tiny(), max_new_tokens=8)


@pytest.fixture(autouse=True)
def disabled():
    """Whatever an example leaves behind, Keras compiles models in the next test."""
    yield
    keras_xla.disable()


@pytest.mark.parametrize(("name", "code"), RUN)
def test_the_example_runs(name, code, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if HUB_NAME in code:
        code = code.replace(HUB_NAME, request.getfixturevalue("folder"))
    if name in ALONE:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        env["KERAS_XLA_CACHE"] = str(tmp_path / "cache")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return
    given = {"__name__": "example", "keras": keras, "np": np, "keras_xla": keras_xla}
    if re.search(r"\blayer\b", code):
        given["layer"] = request.getfixturevalue("layer")
    exec(compile(code, f"<example of {name}>", "exec"), given)


@pytest.mark.parametrize("name", [*TOP, *(f"XLAGenerationLayer.{method}" for method in MAIN_METHODS)])
def test_it_has_an_example(name):
    """No exceptions: errors and data classes have one, too."""
    assert name in dict(EXAMPLES)


@pytest.mark.parametrize("name", PUBLIC)
def test_it_and_its_members_have_docstrings(name):
    value = PUBLIC[name]
    assert (value.__doc__ or "").strip()
    if inspect.isclass(value) and not issubclass(value, keras.callbacks.Callback):  # whose hooks are Keras'
        without = [member for member, each in members(name, value) if not (each.__doc__ or "").strip()]
        assert not without


def test_every_public_name_is_on_a_page_of_the_reference():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    found = {id(pkgutil.resolve_name(name)) for name in shown}
    assert len(found) == len(shown)  # each on one page
    # `callbacks` is a module, whose names are there.
    missing = [name for name, value in PUBLIC.items() if id(value) not in found and value is not callbacks]
    assert not missing
