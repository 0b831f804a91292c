"""Shared fixtures: checkpoints, tokenizers and a clean view of the compile log."""

import gc
import json
import linecache
import os
import pathlib
import sys
import traceback
from collections.abc import Iterator

import hypothesis
import keras
import pytest
from filelock import FileLock

import keras_xla
from keras_xla import troubleshooting

# PyTorch, which tests compare with, imports it where it was built for CUDA: see `keras_xla/private/triton.py`.
sys.modules.setdefault("triton", None)

# In `make test` hypothesis draws the same examples every time: what fails there, a change broke.
# `--hypothesis-profile random`, in `make test-all`, draws others.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("random", derandomize=False)
hypothesis.settings.load_profile("same")


MARKS = ["quick", "quick_on_jax"] if keras.backend.backend() == "jax" else ["quick"]


def is_quick(item) -> bool:
    """Whether the marks of a test leave it to `make test`.

    Of a test marked `quick`, the parametrizations are slow whose id has none of the mark's arguments in it; of one that
    is marked `quick_on_jax`, and that TensorFlow runs, too, those are slow on JAX. Without arguments all are.
    """
    return chosen_by(item, filter(None, map(item.get_closest_marker, MARKS)))


def chosen_by(item, marks) -> bool:
    """Whether each of the marks has a part of a parametrization's id among its arguments."""
    case = item.callspec.id if hasattr(item, "callspec") else ""
    return all(any(part in case for part in mark.args) for mark in marks)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name):
    """An error for a test whose own marks choose none of its parametrizations: it would always be slow."""
    made = yield
    items = [item for item in made if isinstance(item, pytest.Function)] if isinstance(made, list) else []
    marks = [mark for mark in (items[0].own_markers if items else ()) if mark.name in MARKS]
    if marks and all(mark.args for mark in marks) and not any(chosen_by(item, marks) for item in items):
        ids = [item.callspec.id for item in items if hasattr(item, "callspec")]
        raise collector.CollectError(f"{name}: {[mark.args for mark in marks]} choose none of {ids}.")
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Slow tests first: one of two processes keeps them and their fixtures, and short ones are left for the end."""
    for item in items:
        if not is_quick(item):
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish(session):
    """What has been imported stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def settled():
    """What the tests of a file leave behind stays, too, such as executables."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded():
    """Every test begins with the same random numbers, whatever ran before it in its process."""
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def undocumented(monkeypatch) -> Iterator[list[str]]:
    """What keras_xla raised to the test and docs/troubleshooting.md does not have, as it was said: there is none."""
    point, found = troubleshooting.point, []

    def look(error):
        point(error)
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        ours = frame.f_globals["__name__"].partition(".")[0] == "keras_xla"
        if ours and "raise " in linecache.getline(frame.f_code.co_filename, line) and not hasattr(error, "__notes__"):
            found.append(f"{type(error).__name__}: {error}")

    monkeypatch.setattr(troubleshooting, "point", look)
    yield found
    assert not found


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> pathlib.Path:
    """A folder for the tiny random checkpoints of `tests.reference`."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def checkpoint(checkpoints):
    """`checkpoint("gpt2")`: the Hugging Face folder of a tiny random model."""
    from tests import reference  # not above: PyTorch and transformers are slow to import, and few need them

    return lambda variant: reference.folder(variant, checkpoints)


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> pathlib.Path:
    """A folder that all processes of this run of the tests have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def once(shared):
    """`once(name, make)`: what `make` returns (JSON); the process that asks first makes it, and the others read it."""

    def once(name, make):
        path = shared / f"{name}.json"
        with FileLock(shared / f"{name}.lock"):
            if not path.exists():
                path.write_text(json.dumps(make()))
        return json.loads(path.read_text())

    return once


@pytest.fixture
def new_events():
    """`new_events()`: what was compiled since the test began."""
    before = len(keras_xla.compile_log())
    return lambda kind=None: [e for e in keras_xla.compile_log()[before:] if kind in (None, e.kind)]


@pytest.fixture(autouse=True)
def empty_memory(tmp_path_factory, monkeypatch):
    """Every test decides for itself: none sees what another one measured."""
    monkeypatch.setenv("KERAS_XLA_CACHE", str(tmp_path_factory.mktemp("decisions")))
