"""CompileReport: what a fit, evaluate or predict compiled and decided, on the console, in TensorBoard and as JSON."""

import json
import pathlib
import sys

import keras
import numpy as np
import pytest

import keras_xla
from keras_xla.callbacks import CompileReport, XLACompile
from keras_xla.training.reports import compile_report
from keras_xla.training.reports.period import peak_memory
from keras_xla.training.session import watched
from tests.training.helpers import FORCED, OPTIONS, SIZE, X, Y, classifier, normalized

on_tensorflow = keras.backend.backend() == "tensorflow"
tensorflow_only = pytest.mark.skipif(not on_tensorflow, reason="only there keras_xla decides, and times steps")
CHANGE = "argument x: (64, 20) -> (8, 20), y: (64,) -> (8,)"


@pytest.fixture(scope="module")
def model():
    """Compiled by `keras_xla.compile`; its train step has run, for batches of all rows."""
    model = keras_xla.compile(classifier("digits"), **FORCED)
    model.fit(X, Y, batch_size=SIZE, verbose=0)
    return model


def fit(model, *callbacks, **options):
    return model.fit(X, Y, callbacks=list(callbacks), **{"batch_size": SIZE, "verbose": 0, **options})


def test_it_tells_when_what_was_compiled_and_why(tmp_path, capsys):
    model = keras_xla.compile(normalized("digits"), **FORCED)
    fit(model, CompileReport(json_path=tmp_path / "deep" / "report.json"), batch_size=64, epochs=3)
    content = json.loads((tmp_path / "deep" / "report.json").read_text())
    first, second, third = content["periods"]
    assert [c["cause"] for c in first["train"]["compilations"]] == ["first call", CHANGE]
    assert (first["call"], first["number"], first["steps"]) == ("fit", 1, 2)
    assert (
        first["seconds"] > first["overhead_seconds"] > sum(c["seconds"] for c in first["train"]["compilations"]) - 1e-6
    )
    assert second["train"]["compilations"] == third["train"]["compilations"] == []
    assert first["clock_ms_per_step"] > third["clock_ms_per_step"] > 0
    assert content["report"] == keras_xla.model_report(model).to_dict()
    assert content["peak_memory_mib"] >= first["peak_memory_mib"] > 0
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["report.json"]
    printed = capsys.readouterr().out
    assert printed.index("epoch 1:") < printed.index("compiled train in ") < printed.index("epoch 2:")
    assert "epoch 3:" in printed and " ".join(printed.split()).count(CHANGE) == 2  # in its epoch, and in the table
    assert "peak memory" in printed and "digits: jit_compile=True" in printed


def test_a_number_of_steps_may_be_numpy_s(model, tmp_path):
    model.fit(
        X,
        Y,
        batch_size=SIZE,
        steps_per_epoch=np.int64(2),
        verbose=0,
        callbacks=[CompileReport(console=False, json_path=tmp_path / "report.json")],
    )
    ran = [period["steps"] for period in json.loads((tmp_path / "report.json").read_text())["periods"]]
    assert ran == [1]  # then the data end


def test_steps_that_keras_runs_itself_are_those_that_it_announces(tmp_path):
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            super().make_train_function(force)

    model = keras_xla.compile(Own(normalized().layers), **OPTIONS)
    report = CompileReport(console=False, json_path=tmp_path / "report.json")
    model.fit(X, Y, batch_size=8, steps_per_epoch=np.int64(2), verbose=0, callbacks=[report])
    assert [period["steps"] for period in json.loads((tmp_path / "report.json").read_text())["periods"]] == [2]


class StopsEarly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 1

    def on_predict_batch_end(self, batch, logs=None):
        self.model.stop_predicting = batch == 2


def test_the_steps_of_a_period_are_those_that_ran(model):
    report = CompileReport(console=False)
    fit(model, report, StopsEarly(), batch_size=8)
    model.predict(X, batch_size=8, callbacks=[report, StopsEarly()], verbose=0)
    model.evaluate(X, Y, batch_size=8, callbacks=[report], verbose=0)
    done = [2, 3, 9] if keras.backend.backend() == "tensorflow" else [2, 9, 9]  # `predict` is Keras' own on JAX
    assert [period.steps for period in report.periods] == done


def test_who_reads_the_json_file_sees_a_whole_one(model, tmp_path):
    path, opened = tmp_path / "report.json", []
    reader = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: opened.append(path.open()))
    fit(model, CompileReport(console=False, json_path=path), reader, epochs=2)
    assert [len(json.load(file)["periods"]) for file in opened] == [0, 1]  # as it was when they opened it
    assert len(json.loads(path.read_text())["periods"]) == 2


@tensorflow_only
def test_step_times_before_and_after_a_compilation(model, capsys):
    report = CompileReport()
    fit(model, report)
    fit(model, report, batch_size=24, epochs=2)
    (compilation,) = report.periods[1].history.compilations
    assert compilation.before.steps > 0 and compilation.before.milliseconds > 0
    assert compilation.after.steps == 2  # those of the epoch that it is in
    assert "ms a step before" in " ".join(capsys.readouterr().out.split())
    assert report.periods[2].to_dict()["train"]["ran"]["xla"]["steps"] == 3


@tensorflow_only
def test_decisions_are_told(capsys):
    report = CompileReport()
    fit(keras_xla.compile(classifier(), **OPTIONS), report, epochs=2)
    (decision,) = report.periods[0].history.decisions
    assert decision.way == "graph"
    text = " ".join(capsys.readouterr().out.split())
    assert "decided train graph" in text and "cannot repay a trial, " in text


@pytest.mark.parametrize("callbacks_of", [lambda *both: both, lambda *both: both[::-1]])
def test_with_xla_compile_in_one_list_in_either_order(callbacks_of):
    model, report = classifier(), CompileReport(console=False)
    model.compile(**OPTIONS)
    model.predict(X, batch_size=SIZE, callbacks=[*callbacks_of(report, XLACompile(True))], verbose=0)
    assert [c.event.kind for c in report.periods[0].history.compilations] == ["predict"]


def test_a_plain_model_is_refused_before_a_step_runs():
    plain, report = classifier("plain"), CompileReport()
    plain.compile(**OPTIONS)
    for call, data in ((plain.fit, (X, Y)), (plain.evaluate, (X, Y)), (plain.predict, (X,))):
        with pytest.raises(ValueError, match=r"CompileReport received the model 'plain'.*XLACompile\(\)"):
            call(*data, callbacks=[report], verbose=0)
    with pytest.raises(ValueError, match="runs as plain Keras"):
        fit(plain, XLACompile(jit_compile=False), report)
    assert int(plain.optimizer.iterations) == 0 and report.periods == []


def test_validation_is_part_of_its_epoch(model):
    report = CompileReport(console=False)
    fit(model, report, epochs=2, validation_data=(X, Y), validation_batch_size=12)
    assert [period.call for period in report.periods] == ["fit", "fit"]
    assert [c.event.kind for c in report.periods[0].history.compilations] == ["test"]
    for period in report.periods:
        assert 0 < period.validation < period.seconds
        assert period.milliseconds == pytest.approx(1e3 * (period.seconds - period.validation))  # of one step


def test_evaluate_and_predict_are_periods_too(model, capsys):
    report = CompileReport()
    for _ in range(2):
        model.evaluate(X, Y, batch_size=36, callbacks=[report], verbose=0)
    model.predict(X, batch_size=36, callbacks=[report], verbose=0)
    assert [(p.call, p.number) for p in report.periods] == [("evaluate", 1), ("evaluate", 2), ("predict", 1)]
    assert {p.steps for p in report.periods} == {2}
    out = capsys.readouterr().out
    assert out.count("keras_xla: evaluate: ") == 2 and out.count("keras_xla: predict: ") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_the_progress_bar_stays_whole(model, monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    fit(model, CompileReport(), epochs=2, verbose=1)
    model.evaluate(X, Y, batch_size=SIZE, callbacks=[CompileReport()], verbose=1)
    lines = capsys.readouterr().out.replace("\b", "").replace("\r\x1b[K", "\n").split("\n")
    ours = [line for line in lines if "keras_xla:" in line]
    assert [line.split(":")[1].strip() for line in ours] == ["epoch 1", "epoch 2", "fit", "evaluate"]
    assert all(line.startswith("keras_xla:") and "━" not in line for line in ours)
    bars = [i for i, line in enumerate(lines) if "━" in line]
    first_epoch, second = lines.index(ours[0]), next(i for i, line in enumerate(lines) if line.endswith("Epoch 2/2"))
    assert bars[0] < first_epoch < second < bars[-1]
    assert not any(first_epoch < i < second for i in bars)


def test_without_interactive_logging_it_goes_to_the_log(model, capsys, caplog):
    keras.config.disable_interactive_logging()
    try:
        with caplog.at_level("INFO", "absl"):
            fit(model, CompileReport())
    finally:
        keras.config.enable_interactive_logging()
    assert "keras_xla: epoch 1:" in caplog.text
    assert "keras_xla" not in capsys.readouterr().out


def test_steps_still_run_ahead_of_it():
    assert not any(watched([CompileReport()], mode) for mode in ("train", "test", "predict"))


def test_another_model_and_a_fit_that_failed_begin_anew(model):
    report = CompileReport(console=False)

    def fail(epoch, logs):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fit(model, report, keras.callbacks.LambdaCallback(on_epoch_begin=fail))
    model.evaluate(X, Y, batch_size=SIZE, callbacks=[report], verbose=0)
    assert [period.call for period in report.periods] == ["evaluate"]
    other = keras_xla.compile(classifier(), **FORCED)
    other.predict(X, batch_size=SIZE, callbacks=[report], verbose=0)
    assert [(period.call, period.number) for period in report.periods] == [("predict", 1)]


@pytest.mark.parametrize("first", [True, False])
def test_calls_within_a_fit_may_have_the_same_report(model, first):
    report = CompileReport(console=False)

    def fail(logs):
        raise RuntimeError("stop")

    failing = keras.callbacks.LambdaCallback(on_predict_begin=fail)

    def run(*arguments):
        model.evaluate(X, Y, batch_size=SIZE, callbacks=[report], verbose=0)
        model.predict(X, batch_size=SIZE, callbacks=[report], verbose=0)
        with pytest.raises(RuntimeError, match="stop"):
            model.predict(X, batch_size=SIZE, callbacks=[report, failing], verbose=0)

    nested = keras.callbacks.LambdaCallback(on_train_begin=run, on_epoch_end=run)
    fit(model, *([report, nested] if first else [nested, report]), epochs=2)
    model.evaluate(X, Y, batch_size=SIZE, callbacks=[report], verbose=0)
    calls = [period.call for period in report.periods]
    assert calls.count("fit") == 2 and calls.count("predict") == 3 and calls[-1] == "evaluate"


def test_within_a_fit_that_xla_compile_takes_over():
    model, report = classifier(), CompileReport(console=False)
    model.compile(**{name: value for name, value in FORCED.items() if name != "jit_compile"})

    def run(*arguments):
        model.predict(X, batch_size=SIZE, callbacks=[report], verbose=0)
        model.evaluate(X, Y, batch_size=SIZE, callbacks=[report], verbose=0)

    nested = keras.callbacks.LambdaCallback(on_epoch_end=run)
    fit(model, keras_xla.callbacks.XLACompile(), report, nested, epochs=2)
    assert [period.call for period in report.periods].count("fit") == 2


def test_another_model_within_a_fit(model):
    other, report = keras_xla.compile(classifier(), **FORCED), CompileReport(console=False)
    run = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: other.predict(X, batch_size=SIZE, callbacks=[report], verbose=0)
    )
    fit(model, report, run, epochs=3)
    assert [period.call for period in report.periods] == ["fit", "predict"] * 3
    assert [period.number for period in report.periods if period.call == "fit"] == [1, 2, 3]


def test_tensorboard_files(model, tmp_path):
    tf = pytest.importorskip("tensorflow")
    fit(model, CompileReport(console=False, log_dir=tmp_path), epochs=2, batch_size=18)
    (file,) = (tmp_path / "keras_xla").iterdir()
    values = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name or values[value.tag][0]
            values.setdefault(value.tag, (plugin, {}))[1][event.step] = tf.make_ndarray(value.tensor)
    assert {tag for tag, (plugin, _) in values.items() if plugin == "text"} == {"fit/events", "fit/report"}
    curves = {tag: points for tag, (plugin, points) in values.items() if plugin == "scalars"}
    expected = {"fit/seconds", "fit/overhead_seconds", "fit/compilations", "fit/clock_ms_per_step", "peak_memory_mib"}
    assert curves.keys() == expected | {"train/ms_per_step"}
    assert {step: float(value) for step, value in curves["fit/compilations"].items()} == {0: 1, 1: 0}
    assert curves["fit/seconds"][0] > curves["fit/seconds"][1] > 0
    (events,) = values["fit/events"][1].values()
    assert b"      compiled train" in events[0]  # indented, which is code in Markdown


def test_without_tensorflow_tensorboard_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match=r"CompileReport writes TensorBoard's files with TensorFlow.*pip install"):
        CompileReport(log_dir=tmp_path)


def test_wrong_paths_are_refused_before_a_step_runs(model, tmp_path):
    with pytest.raises(TypeError, match="json_path=3; it expects a path"):
        CompileReport(json_path=3)
    before = int(model.optimizer.iterations)
    with pytest.raises(OSError):
        fit(model, CompileReport(json_path=tmp_path))  # a folder
    assert int(model.optimizer.iterations) == before
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))  # what it began to write


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="Linux tells the same there")
def test_the_unit_of_peak_memory_is_mebibytes():
    status = pathlib.Path("/proc/self/status").read_text()
    kibibytes = int(status.split("VmHWM:")[1].split()[0])
    assert np.isclose(peak_memory(), kibibytes / 1024, rtol=0.5)


def test_tensorboards_folder_may_be_elsewhere(monkeypatch):
    made = []
    monkeypatch.setattr(compile_report, "Summaries", lambda who, folder: made.append(folder))
    CompileReport(log_dir="gs://bucket/run")
    CompileReport(log_dir=pathlib.Path("run"))
    assert made == ["gs://bucket/run/keras_xla", "run/keras_xla"]
