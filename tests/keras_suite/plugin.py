"""The pytest plugin: prepares a process for Keras' tests in one mode, and writes what became of each of them.

The mode comes from `KERAS_SUITE_MODE`. The file named by `KERAS_SUITE_REPORT` gets a JSON line when a test begins, one
when it is over and one with the counts at the end; tests that are over in it already are not run. So the command can
start a process again that died, with the next test.
"""

import json
import os
import pathlib
import sys
import types

import keras
import pytest

from tests.keras_suite import modes

_REPORT = pathlib.Path(os.environ["KERAS_SUITE_REPORT"])
_KERAS = pathlib.Path(keras.__file__).parent / "src"
_MARKERS = ("requires_trainable_backend", "multi_device")
_counts = modes.begin(os.environ["KERAS_SUITE_MODE"])


def pytest_configure(config):
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    sys.modules["conftest"] = types.ModuleType(
        "conftest"
    )  # Keras' own is not in the wheel; this is what tests want of it
    sys.modules["conftest"].skip_if_backend = lambda name, reason: pytest.mark.skipif(
        keras.backend.backend() == name, reason=reason
    )


def pytest_collection_modifyitems(items):
    if not _REPORT.exists():
        return
    over = {line["over"] for line in map(json.loads, _REPORT.read_text().splitlines()) if "over" in line}
    items[:] = [item for item in items if name_of(item.nodeid) not in over]


def pytest_runtest_protocol(item):
    _write(begun=name_of(item.nodeid))
    keras.utils.set_random_seed(0)  # the same numbers in every mode, whatever ran before
    if keras.backend.backend() == "tensorflow":
        from tensorflow.python.framework.config import disable_op_determinism

        disable_op_determinism()  # a test leaves it on, and with it Keras takes XLA off in all that come later


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        text = "" if outcome in ("passed", "xfailed") else str(report.longrepr)
        crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") if text else ""
        seconds = round(report.duration, 3)
        _write(over=name_of(report.nodeid), outcome=outcome, seconds=seconds, error=crash[:2000], text=text[-6000:])


def pytest_collectreport(report):
    if report.failed:
        _write(over=name_of(report.nodeid), outcome="failed", error=str(report.longrepr)[-1000:], text="")


def pytest_sessionfinish():
    _write(counts=dict(_counts))


def name_of(nodeid: str) -> str:
    """`trainers/trainer_test.py::TestTrainer::test_fit_flow_jit`, wherever Keras is installed."""
    path, _, rest = nodeid.partition("::")
    parts = path.split("keras/src/")
    return parts[-1] + (f"::{rest}" if rest else "")


def _write(**line):
    with _REPORT.open("a") as file:
        file.write(json.dumps(line) + "\n")
