"""What became of a whole script: its models, its functions and every compilation, as text and for JSON."""

from dataclasses import asdict
from typing import Any

from keras_xla import backend
from keras_xla.backend.compile_log import compile_log
from keras_xla.training.attach import attachment_of
from keras_xla.training.decide.functions import CALLS_BEFORE_A_LOOK, SECONDS_BEFORE_A_LOOK, FunctionPolicy
from keras_xla.training.enable import SeenModel, seen
from keras_xla.training.reports.journal import Snapshot, Tally
from keras_xla.training.reports.model_report import ModelReport
from keras_xla.training.reports.table import hanging

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
    return "\n".join([*parts, str(compile_log() or "no XLA compilation")])


def _report(seen_model: SeenModel) -> ModelReport | None:
    """How it ran; None if plain Keras ran it."""
    model, journal = seen_model.model(), seen_model.journal
    if seen_model.note:
        attachment = attachment_of(model) if model is not None else None
        if attachment is None or any(other.journal is attachment.journal for other in seen()[0]):
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
        lines.append(hanging(f"  {d.way}: ", d.why("call")))
    if not history.decisions:
        lines.append(f"  graph: {_undecided(history)}")
    return "\n".join(lines)


def _undecided(history: Snapshot) -> str:
    ran = sum(history.tallies.values(), Tally())
    little = ran.steps < CALLS_BEFORE_A_LOOK or ran.seconds < SECONDS_BEFORE_A_LOOK
    told = "too little to repay a compilation" if little else "with no decision yet"
    return f"{ran.steps} calls that took {ran.seconds:.2f} s, {told}"


def _shortened(texts: list[str], what: str) -> list[str]:
    rest = len(texts) - LISTED
    return texts if rest <= 0 else [*texts[:LISTED], f"... and {rest} more {what}; --report has them all"]
