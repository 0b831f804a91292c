"""`make keras-tests`: that it counts, that it compares, and a few of Keras' tests through XLA."""

import json
import textwrap

import pytest

from tests.keras_suite.expected import FILE, Expected, expected
from tests.keras_suite.modes import MODES
from tests.keras_suite.runs import Run, read, run

LISTED = Expected("trainers/*::test_fit*", ("true",), ("jax",), "no XLA kernel", "XLA cannot do that")


@pytest.mark.parametrize(
    ("backend", "mode", "test", "text", "is_expected"),
    [
        ("jax", "true", "trainers/trainer_test.py::T::test_fit", "StringUpper has no XLA kernel", True),
        ("jax", "true", "trainers/trainer_test.py::T::test_fit", "the loss is NaN", False),
        ("jax", "true", "trainers/trainer_test.py::T::test_predict", "StringUpper has no XLA kernel", False),
        ("jax", "auto", "trainers/trainer_test.py::T::test_fit", "StringUpper has no XLA kernel", False),
        ("tensorflow", "true", "trainers/trainer_test.py::T::test_fit", "StringUpper has no XLA kernel", False),
    ],
)
def test_a_difference_is_expected_with_its_backend_mode_name_and_error_only(backend, mode, test, text, is_expected):
    assert LISTED.covers(backend, mode, test, text) == is_expected


def test_every_listed_difference_names_modes_that_exist_and_a_reason():
    for entry in expected(FILE):
        assert set(entry.modes) <= set(MODES) and set(entry.backends) <= {"tensorflow", "jax"}
        assert entry.modes and entry.backends and entry.error and entry.reason


def test_a_test_that_fails_in_its_teardown_has_failed(tmp_path):
    report = tmp_path / "report.jsonl"
    lines = [{"begun": "a"}, _over("a", "passed"), _over("a", "failed"), {"counts": {"fit": 2}}]
    report.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = read(report)
    assert results.outcomes == {"a": "failed"} and results.counts["fit"] == 2


@pytest.mark.slow
def test_tests_after_one_that_kills_its_process_are_run(tmp_path):
    file = tmp_path / "some_test.py"
    file.write_text("import os\ndef test_a(): pass\ndef test_b(): os._exit(3)\ndef test_c(): pass\n")
    results = run(Run("jax", "plain", "some", (str(file),)), tmp_path)
    assert [results.outcomes[name] for name in sorted(results.outcomes)] == ["passed", "failed", "passed"]
    assert "the process ended with 3" in next(results.errors[n] for n, o in results.outcomes.items() if o == "failed")


@pytest.mark.slow
def test_models_of_keras_tests_run_through_xla_and_pass(tmp_path):
    tests = ("callbacks/early_stopping_test.py", "callbacks/reduce_lr_on_plateau_test.py")
    results = run(Run("tensorflow", "forced", "some", tests), tmp_path)
    assert set(results.outcomes.values()) == {"passed"}
    assert results.counts["fit_xla"] == results.counts["fit"] > 10


@pytest.mark.slow
def test_what_keras_tests_say_of_jit_compile_does_not_keep_models_from_ours(tmp_path):
    file = tmp_path / "switch_test.py"
    file.write_text(
        textwrap.dedent("""
        import keras, numpy as np

        def test_fit():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile(loss="mse", jit_compile=False)
            model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
        """)
    )
    runs = {mode: run(Run("tensorflow", mode, "switch", (str(file),)), tmp_path).counts for mode in ("auto", "true")}
    assert runs["auto"]["models_ours"] == 0 and runs["auto"]["models"] == 1
    assert runs["true"]["models_ours"] == 1 and runs["true"]["fit_xla"] == 1


def _over(name, outcome):
    return {"over": name, "outcome": outcome, "error": "", "text": ""}
