"""model_report: decisions, compilations and step times of one model, as tables and as dictionaries."""

import json
import time

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla.backend.compile_log import CompileEvent
from keras_xla.training.reports.journal import Decision, Journal
from keras_xla.training.reports.model_report import ModelReport
from tests.training.helpers import FORCED, OPTIONS, SIZE, X, Y, classifier, normalized

on_tensorflow = keras.backend.backend() == "tensorflow"
tensorflow_only = pytest.mark.skipif(not on_tensorflow, reason="only there keras_xla decides, and times steps")
CHANGE = "argument x: (32, 20) -> (8, 20), y: (32,) -> (8,)"


def event(seconds=1.0, cause="first call", kind="train", **more):
    return CompileEvent("model.train_step", kind, "x: (32, 20) float32", cause, seconds, **more)


def printed(journal, **options):
    options = {"jit_compile": "auto", "run_eagerly": False, **options}
    return str(ModelReport("model", backend="tensorflow", history=journal.snapshot(), **options))


@pytest.fixture(scope="module")
def fitted():
    model = keras_xla.compile(normalized("digits"), **FORCED)
    model.fit(X, Y, batch_size=32, epochs=3, shuffle=False, verbose=0)
    return model


def test_every_compilation_with_its_cause_and_seconds(fitted):
    report = json.loads(json.dumps(keras_xla.model_report(fitted).to_dict()))
    assert (report["model"], report["jit_compile"]) == ("digits", True)
    first, second = report["train"]["compilations"]
    assert (first["cause"], first["batch"]) == ("first call", "x: (32, 20) float32, y: (32,) int32")
    assert (second["cause"], second["batch"]) == (CHANGE, "x: (8, 20) float32, y: (8,) int32")
    assert 0 < second["seconds"] < first["seconds"] + second["seconds"] <= report["overhead_seconds"] + 1e-6
    assert (
        report["test"]
        == report["predict"]
        == {
            "different_batches": 0,
            "decisions": [],
            "ran": {},
            "compilations": [],
        }
    )


@tensorflow_only
def test_what_was_decided_and_what_ran(fitted):
    train = keras_xla.model_report(fitted).to_dict()["train"]
    assert [(d["way"], d["reason"]) for d in train["decisions"]] == [("xla", "jit_compile=True")] * 2
    assert train["ran"]["xla"]["steps"] == 3 * 3 - 2  # two steps compiled
    assert train["ran"]["xla"]["ms_per_step"] > 0
    first, second = train["compilations"]
    assert first["ms_per_step_before"] is None
    assert first["ms_per_step_after"] == second["ms_per_step_before"] > 0
    assert second["ms_per_step_after"] > 0


@tensorflow_only
def test_a_measured_decision():
    model = keras_xla.compile(classifier(), **OPTIONS)
    model.fit(X, Y, batch_size=SIZE, epochs=40, verbose=0)
    report = keras_xla.model_report(model)
    (decision,) = report.to_dict()["train"]["decisions"]
    assert decision["way"] == "graph" and "cannot repay a compilation" in decision["reason"]
    assert decision["measured_ms_per_step"]["graph"] > 0
    assert 0 < decision["seconds"] == report.to_dict()["overhead_seconds"]
    assert "graph ms" in str(report) and "cannot repay a compilation" in str(report)


@pytest.mark.skipif(on_tensorflow, reason="there keras_xla runs the steps")
def test_where_keras_own_functions_run_the_report_says_so(fitted):
    fitted.predict(X, batch_size=SIZE, verbose=0)
    text = str(keras_xla.model_report(fitted))
    assert "not timed  predict: Keras' own function" in text
    assert "decided\n" not in text


def test_a_report_does_not_change_afterwards(fitted):
    report = keras_xla.model_report(fitted)
    before = report.to_dict()
    fitted.predict(X, batch_size=SIZE, verbose=0)
    assert report.to_dict() == before
    assert keras_xla.model_report(fitted).to_dict()["predict"]["compilations"]


def test_models_of_the_same_name_are_kept_apart(fitted):
    twin = keras_xla.compile(classifier("digits"), **FORCED)
    twin.predict(X, batch_size=SIZE, verbose=0)
    report = keras_xla.model_report(twin).to_dict()
    assert (len(report["predict"]["compilations"]), report["train"]["compilations"]) == (1, [])


def test_before_anything_runs():
    assert "nothing has run yet" in str(keras_xla.model_report(keras_xla.compile(classifier(), **FORCED)))
    eager = keras_xla.compile(classifier(), **OPTIONS, run_eagerly=True)
    assert "run_eagerly=True" in str(keras_xla.model_report(eager))


def compile_plainly(model):
    model.compile(**OPTIONS, jit_compile=False)


def compile_without_xla(model):
    keras_xla.compile(model, **OPTIONS, jit_compile=False)


@pytest.mark.parametrize("make", [compile_plainly, compile_without_xla])
def test_a_model_that_runs_as_plain_keras_has_none(make):
    model = keras_xla.compile(classifier("plain"), **FORCED)
    make(model)
    with pytest.raises(ValueError, match=r"'plain', which runs as plain Keras.*keras_xla\.compile\(.*XLACompile\(\)"):
        keras_xla.model_report(model)


def test_only_models_are_accepted():
    with pytest.raises(TypeError, match=r"model_report received Dense; it expects a keras\.Model"):
        keras_xla.model_report(keras.layers.Dense(1))


def test_steps_before_and_after_each_compilation_are_told_apart():
    journal = Journal()
    journal.compiled(event())
    earlier = journal.snapshot()
    journal.ran("train", "xla", 10, 0.02)
    journal.ran("test", "xla", 10, 9.0)
    before = journal.snapshot()
    journal.compiled(event(0.5, CHANGE))
    journal.ran("train", "xla", 5, 0.03)
    journal.ran("train", "graph", 5, 0.05)
    first, second = journal.snapshot().compilations
    assert (first.before.milliseconds, first.after.milliseconds) == (0, 2)
    assert (second.before.milliseconds, second.after.milliseconds) == (2, 8)
    new = journal.snapshot().since(before)
    assert [c.event.cause for c in new.compilations] == [CHANGE]
    assert {key: tally.steps for key, tally in new.tallies.items()} == {("train", "xla"): 5, ("train", "graph"): 5}
    assert (earlier.compilations[0].after.steps, before.compilations[0].after.steps) == (0, 10)


def test_a_trial_is_counted_once_and_says_what_came_of_it():
    journal, now = Journal(), time.time()
    journal.compiled(event(2.0, time=now))
    journal.decisions.append(
        Decision("train", "x: (32, 20) float32", "graph", "XLA is not faster", {"graph": 1, "xla": 2}, 3.0, now + 0.1)
    )
    journal.compiled(event(0.5, "first call", "test", time=now))
    assert journal.snapshot().overhead == 3.5
    text = printed(journal)
    assert text.count("first call (for a trial; graph was chosen)") == 1
    journal.decisions[0] = Decision("train", "", "xla", "measured", {"graph": 2, "xla": 1}, 3.0, now + 0.1)
    assert "for a trial" not in printed(journal)


def test_batches_that_come_again_are_no_other_batches_however_many_there_are():
    journal = Journal()
    for _ in range(3):
        for length in range(1500):
            journal.decided(Decision("train", f"x: (1, {length}) float32", "graph", "too few"))
    assert journal.shapes == {"train": 1500}


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_tables_are_aligned_and_fit_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    journal = Journal()
    shapes = "x: (32, 784) float32, y: (32,) int64, sample_weight: (32,) float32"
    reason = "600 steps to come cannot repay a compilation"
    for kind, way in (("predict", "graph"), ("train", "partial")):
        journal.decisions.append(Decision(kind, shapes, way, reason, {"graph": 123.456, way: 7.5}, 12.3))
        journal.ran(kind, way, 1234567, 8901.2)
        journal.compiled(event(123.4, f"argument {shapes} -> (8, 784)", kind))
    lines = printed(journal).splitlines()
    assert max(map(len, lines)) <= columns
    start = lines.index("decided") + 1
    header, first = lines[start], next(line for line in lines[start:] if line.startswith("  train "))
    assert first == next(line for line in lines[start + 1 :] if line[2] != " ")  # before predict
    for name, cell in (("graph ms", "123.46"), ("partial ms", "7.50"), ("seconds", "12.30")):
        assert header.index(name) + len(name) == first.index(cell) + len(cell)
    if columns > 60:
        assert header.index("why") == first.index("600")
    assert any("x: (32, 784) float32" in line for line in lines)  # never broken within


def test_milliseconds_are_averages_over_all_steps():
    journal = Journal()
    journal.ran("train", "graph", 1, 0.009)
    journal.ran("train", "graph", 2, 0.0)
    assert "graph      3       3.00" in printed(journal)
    assert np.isclose(journal.snapshot().tallies["train", "graph"].milliseconds, 3)
