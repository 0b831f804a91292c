"""What became of a whole script: its models, its functions and every compilation, as text and for JSON."""

from dataclasses import asdict
from typing import Any

from keras_xla import backend
from keras_xla.backend.compile_log import CompileLog, compile_log
from keras_xla.training.attach import attachment_of
from keras_xla.training.decide.functions import CALLS_BEFORE_A_LOOK, SECONDS_BEFORE_A_LOOK, FunctionPolicy
from keras_xla.training.enable import SeenModel, seen
from keras_xla.training.reports.journal import Snapshot
from keras_xla.training.reports.model_report import ModelReport
from keras_xla.training.reports.table import hanging, milliseconds

LISTED = 20  # models, and functions, that the text shows


def overview() -> dict[str, Any]:
    """All that has been seen since `keras_xla.enable`, as dictionaries, lists, strings and numbers."""
    models, functions = seen()
    log = compile_log()
    return {
        "backend": backend.name,
        "models": [_model_dict(model) for model in models],
        "functions": [_function_dict(function) for function in functions],
        "compilations": [asdict(event) for event in log],
        "compile_seconds": log.seconds,
    }


def overview_text() -> str:
    """The same for people."""
    models, functions = seen()
    parts = _shortened([_model_text(model) for model in models], "models")
    parts += _shortened([_function_text(function) for function in functions], "decorated functions")
    return "\n".join([*parts, _compiled(compile_log())])


def _report(seen_model: SeenModel) -> ModelReport | None:
    """How it ran; None if plain Keras ran it."""
    model, journal = seen_model.model(), seen_model.journal
    if seen_model.note:
        attachment = attachment_of(model) if model is not None else None
        if attachment is None:
            return None
        journal = attachment.journal  # the script has called keras_xla.compile itself
    return ModelReport(
        seen_model.name, seen_model.jit_compile, backend.name, seen_model.run_eagerly, journal.snapshot()
    )


def _model_dict(model: SeenModel) -> dict[str, Any]:
    report = _report(model)
    return report.to_dict() if report else {"model": model.name, "jit_compile": model.jit_compile, "note": model.note}


def _model_text(model: SeenModel) -> str:
    report = _report(model)
    if report is None:
        return hanging(f"{model.name}: ", model.note)
    history = report.history
    if not (history.decisions or history.tallies or history.compilations):
        return f"{model.name}: compiled, and never run"
    return str(report)


def _function_dict(function: FunctionPolicy) -> dict[str, Any]:
    history = function.journal.snapshot()
    return {
        "function": function.name,
        "jit_compile": function.jit_compile,
        "decisions": [
            {"way": d.way, "reason": d.reason, "arguments": d.shapes, "measured_ms_per_call": d.measured}
            for d in history.decisions
        ],
        "timed": {
            way: {"calls": tally.steps, "ms_per_call": tally.milliseconds}
            for (_, way), tally in history.tallies.items()
        },
    }


def _function_text(function: FunctionPolicy) -> str:
    history = function.journal.snapshot()
    lines = [f"{function.name}: tf.function"]
    for d in history.decisions:
        times = ", ".join(f"{way} {milliseconds(ms)} ms a call" for way, ms in d.measured.items())
        lines.append(hanging(f"  {d.way}: ", f"{d.reason}{f' ({times})' if times else ''} [{d.shapes}]"))
    if not history.decisions:
        lines.append(f"  graph: {_undecided(history)}")
    return "\n".join(lines)


def _undecided(history: Snapshot) -> str:
    tallies = list(history.tallies.values())
    calls, seconds = sum(tally.steps for tally in tallies), sum(tally.seconds for tally in tallies)
    if calls < CALLS_BEFORE_A_LOOK or seconds < SECONDS_BEFORE_A_LOOK:
        return f"{calls} calls that took {seconds:.2f} s, too little to repay a compilation"
    return f"{calls} calls that took {seconds:.2f} s, with no decision yet"


def _compiled(log: CompileLog) -> str:
    return str(log) if log else "no XLA compilation"


def _shortened(texts: list[str], what: str) -> list[str]:
    rest = len(texts) - LISTED
    return texts if rest <= 0 else [*texts[:LISTED], f"... and {rest} more {what}; --report has them all"]
