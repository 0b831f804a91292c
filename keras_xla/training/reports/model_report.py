"""`keras_xla.model_report`: what was decided for a model, what was compiled, and how its steps ran."""

import time
from dataclasses import dataclass
from typing import Any

import keras

from keras_xla import backend
from keras_xla.backend.keras2 import require_model
from keras_xla.training.attach import Attachment, attachment_of
from keras_xla.training.reports.journal import ADVICE, MOST_LISTED, STEP_KINDS, Compilation, Decision, Snapshot
from keras_xla.training.reports.table import hanging, milliseconds, table
from keras_xla.troubleshooting import explained


@dataclass(frozen=True)
class ModelReport:
    """The answer of `keras_xla.model_report`; `print` shows it as tables.

    Attributes:
        model: Name of the model.
        jit_compile: As it was asked for: True or `"auto"`.
        backend: The backend that Keras runs on: `"tensorflow"` or `"jax"`.
        run_eagerly: Whether the model runs eagerly, where there is nothing to compile or decide.
        history: A `Snapshot`: the decisions, the compilations and the times of the steps.
    """

    model: str
    jit_compile: bool | str
    backend: str
    run_eagerly: bool
    history: Snapshot

    @property
    def untimed(self) -> tuple[str, ...]:
        """Kinds of steps that were compiled, but neither decided about nor timed: Keras' own function runs most."""
        compiled = {compilation.event.kind for compilation in self.history.compilations}
        known = {decision.kind for decision in self.history.decisions} | {kind for kind, _ in self.history.tallies}
        return tuple(kind for kind in STEP_KINDS if kind in compiled - known)

    def to_dict(self) -> dict[str, Any]:
        """All of it as dictionaries, lists, strings and numbers, ready for JSON.

        Returns:
            A dict with `"model"`, `"jit_compile"`, `"backend"`, `"run_eagerly"`, `"overhead_seconds"` (what deciding
            and compiling took), and for each of `"train"`, `"test"` and `"predict"` a dict with `"different_batches"`,
            `"decisions"`, `"ran"` (by way, with `"steps"` and `"ms_per_step"`) and `"compilations"`.
        """
        return {
            "model": self.model,
            "jit_compile": self.jit_compile,
            "backend": self.backend,
            "run_eagerly": self.run_eagerly,
            "overhead_seconds": self.history.overhead,
            **snapshot_dict(self.history),
        }

    def __str__(self):
        head = f"{self.model}: jit_compile={self.jit_compile!r} on {self.backend}"
        if self.run_eagerly:
            head += "; run_eagerly=True, so that steps run as they are"
        parts = [head, *filter(None, (self._decided(), self._ran(), self._compiled()))]
        if len(parts) == 1 and not self.run_eagerly:
            parts.append("nothing has run yet: the choice is made at the first batch of fit, evaluate or predict")
        return "\n".join(parts)

    def _decided(self) -> str:
        decisions = _sorted(self.history.decisions, lambda decision: decision.kind)
        if not decisions:
            return ""
        ways = [way for way in ("graph", "xla", "partial") if any(way in d.measured for d in decisions)]
        rows = [
            (
                d.kind,
                d.way,
                *(milliseconds(d.measured.get(way)) for way in ways),
                f"{d.spent:.2f}" if d.measured else "-",
                f"{d.reason}\n{d.shapes}",
            )
            for d in decisions
        ]
        header = ("step", "way", *(f"{way} ms" for way in ways), "seconds", "why, and for which batches")
        parts = ["decided\n" + table(header, rows, range(2, 3 + len(ways)))]
        for kind, count in self.history.shapes.items():
            if count > MOST_LISTED:
                told = f"{count} different batches, not all of them listed; XLA is for few that come often. {ADVICE}"
                parts.append(hanging(f"{kind}  ", told))
        return "\n".join(parts)

    def _ran(self) -> str:
        tallies = _sorted(self.history.tallies.items(), lambda item: item[0][0])
        rows = [(kind, way, tally.steps, milliseconds(tally.milliseconds), "") for (kind, way), tally in tallies]
        parts = ["ran\n" + table(("step", "way", "steps", "ms a step", ""), rows, (2, 3))] if rows else []
        if self.untimed:
            why = "Keras' own function ran these steps, which decides nothing and is not timed, or there were too few"
            parts.append(hanging("not timed  ", f"{', '.join(self.untimed)}: {why}"))
        return "\n".join(parts)

    def _compiled(self) -> str:
        compilations = self.history.compilations
        timed = any(c.before.steps or c.after.steps for c in compilations)
        rows = []
        for c in compilations:
            around = (milliseconds(c.before.milliseconds), milliseconds(c.after.milliseconds)) if timed else ()
            at = time.strftime("%H:%M:%S", time.localtime(c.event.time))
            rows.append((c.event.kind, at, f"{c.event.seconds:.2f}", *around, "\n".join(self.history.why(c))))
        around = ("ms before", "ms after") if timed else ()
        header = ("step", "at", "seconds", *around, "why, and for which batches")
        return "compiled\n" + table(header, rows, range(2, 3 + len(around))) if rows else ""


@explained
def model_report(model: keras.Model) -> ModelReport:
    """Tell what was decided for a model, what was compiled for it, and how its steps ran.

    Args:
        model: A Keras model that `keras_xla.compile`, `XLACompile` or `keras_xla.enable` has compiled with `"auto"` or
            True.

    Returns:
        A `ModelReport` of everything since then: `print` it, or take `to_dict()`. It does not change afterwards.

    Raises:
        ValueError: Plain Keras runs the model: `keras_xla` has not compiled it, or `model.compile` has taken it off.
        TypeError: `model` is not a Keras model.

    Example:
    ```python
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model = keras_xla.compile(model, optimizer="adam", loss="mse")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=3, verbose=0)
    print(keras_xla.model_report(model))
    ```
    """
    require_model("keras_xla.model_report", model)
    attachment = require_attachment("keras_xla.model_report", model)
    return report_of(model, attachment, attachment.journal.snapshot())


def report_of(model: keras.Model, attachment: Attachment, history: Snapshot) -> ModelReport:
    """The report of one stretch of a model's history."""
    return ModelReport(model.name, attachment.jit_compile, backend.name, bool(model.run_eagerly), history)


def require_attachment(who: str, model: keras.Model) -> Attachment:
    """What is attached to the model; raises `ValueError` if nothing is."""
    attachment = attachment_of(model)
    if attachment is None:
        raise ValueError(
            f"{who} received the model {model.name!r}, which runs as plain Keras, so that there is nothing to report; "
            "it expects one that keras_xla has compiled. Call keras_xla.compile(model, ...) instead of "
            "model.compile(...), or pass callbacks=[keras_xla.callbacks.XLACompile()] to fit, evaluate or predict "
            '(with jit_compile="auto" or True: False makes the model plain Keras).'
        )
    return attachment


def snapshot_dict(history: Snapshot) -> dict[str, Any]:
    """By kind, `{"different_batches": 1, "decisions": [...], "ran": {...}, "compilations": [...]}`."""
    return {
        kind: {
            "different_batches": history.shapes.get(kind, 0),
            "decisions": [_decision_dict(decision) for decision in history.decisions if decision.kind == kind],
            "ran": {
                way: {"steps": tally.steps, "ms_per_step": tally.milliseconds}
                for (other, way), tally in history.tallies.items()
                if other == kind
            },
            "compilations": [_compilation_dict(c, history) for c in history.compilations if c.event.kind == kind],
        }
        for kind in STEP_KINDS
    }


def _decision_dict(decision: Decision) -> dict[str, Any]:
    return {
        "way": decision.way,
        "reason": decision.reason,
        "batch": decision.shapes,
        "measured_ms_per_step": decision.measured,
        "seconds": decision.spent,
        "time": decision.time,
    }


def _compilation_dict(compilation: Compilation, history: Snapshot) -> dict[str, Any]:
    event = compilation.event
    return {
        "cause": history.why(compilation)[0],
        "batch": event.shapes,
        "seconds": event.seconds,
        "time": event.time,
        "ms_per_step_before": compilation.before.milliseconds or None,
        "ms_per_step_after": compilation.after.milliseconds or None,
    }


def _sorted(items, kind_of) -> list:
    return sorted(items, key=lambda item: STEP_KINDS.index(kind_of(item)))
