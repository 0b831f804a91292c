"""`CompileReport`: what was compiled and decided while `fit`, `evaluate` or `predict` ran, and what it brought."""

import json
import os
import pathlib
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

import keras
from absl import logging

from keras_xla.backend.keras2 import AnyKeras
from keras_xla.backend.tensorboard import Summaries
from keras_xla.cache_folder import write_whole
from keras_xla.training.reports.model_report import report_of, require_attachment
from keras_xla.training.reports.period import Period, Stretch, peak_memory
from keras_xla.troubleshooting import explained

FORMAT = 1
_KINDS = {"fit": "train", "evaluate": "test", "predict": "predict"}  # of the steps of each call
_CODE = " " * 4  # before lines that Markdown leaves as they are


@explained
class CompileReport(AnyKeras):
    """Report what was compiled and why, what was decided, step times and memory, while a model runs.

    It is for models that `keras_xla.compile` compiles, or `XLACompile`, which may be in the same list of callbacks. It
    works in `fit`, `evaluate` and `predict`. It looks at epochs only, so that steps still run several at a time.

    Args:
        console: Whether to print (bool), True by default: a line after each epoch, with what was decided and compiled
            in it, and tables at the end of the call if anything was. An epoch's line comes when Keras has finished its
            progress bar: as the next epoch begins.
        log_dir: A folder for TensorBoard (a path). The curves are a run named `keras_xla` in it, so it may be that of
            `keras.callbacks.TensorBoard`. None, the default, for no such files.
        json_path: A JSON file with all of it (a path), written anew after each epoch. None, the default, for no file.

    Attributes:
        periods: A `Period` for each epoch of `fit` and each call of `evaluate` and `predict`, of the latest model.

    Raises:
        ValueError: When `fit`, `evaluate` or `predict` begins: `keras_xla` has not compiled the model.
        ImportError: `log_dir` is given, and TensorFlow, which writes those files, is not installed.
        TypeError: `log_dir` or `json_path` is not a path.
        OSError: When a call begins: `json_path` cannot be written.

    Example:
    ```python
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model = keras_xla.compile(model, optimizer="adam", loss="mse")
    report = keras_xla.callbacks.CompileReport(json_path="compile_report.json")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=3, callbacks=[report], verbose=2)
    print(report.periods[-1].seconds)
    ```
    """

    def __init__(
        self,
        console: bool = True,
        log_dir: str | os.PathLike | None = None,
        json_path: str | os.PathLike | None = None,
    ):
        super().__init__()
        for name, value in (("log_dir", log_dir), ("json_path", json_path)):
            if not isinstance(value, (str, os.PathLike, type(None))):
                raise TypeError(
                    f"CompileReport received {name}={value!r}; it expects a path, or None for no such file."
                )
        self.periods: list[Period] = []
        self._console = console
        self._summaries = (
            Summaries("CompileReport", os.path.join(log_dir, "keras_xla")) if log_dir is not None else None
        )
        self._json_path = pathlib.Path(json_path) if json_path is not None else None
        self._reported: keras.Model | None = None
        self._calls = dict.fromkeys(_KINDS, 0)
        self._running: list[_Call] = []  # those that go on, the innermost last
        self._begins = False  # whether this was just put into the list of callbacks of a call

    def set_model(self, model: keras.Model) -> None:
        """Begin anew for another model, unless it runs in a callback of the one before."""
        super().set_model(model)
        self._running = [call for call in self._running if call.goes_on]  # one that failed has told nobody
        if model is not self._reported and not self._running:
            self._reported, self.periods, self._calls = model, [], dict.fromkeys(self._calls, 0)
        self._begins = True

    def on_train_begin(self, logs=None):
        self._begin("fit")

    def on_epoch_begin(self, epoch, logs=None):
        call = self._call("fit")
        self._print_epoch(call)
        call.part = Stretch(call.attachment.journal)

    def on_epoch_end(self, epoch, logs=None):
        call = self._call("fit")
        period = self._end_period(call, call.part, epoch + 1)
        call.unprinted = [period.summary(f"epoch {epoch + 1}"), *period.events()]

    def on_train_end(self, logs=None):
        call = self._call("fit")
        self._print_epoch(call)
        self._end(call, call.whole.end("fit", self._calls["fit"]))

    def on_test_begin(self, logs=None):
        if self._begins:
            self._begin("evaluate")
        else:  # the validation of a fit has its callbacks
            self._call("fit").part.begin_validation()

    def on_test_end(self, logs=None):
        if next(call.name for call in reversed(self._running) if call.name != "predict") == "fit":
            self._call("fit").part.end_validation()
        else:
            self._end_alone("evaluate")

    def on_predict_begin(self, logs=None):
        self._begin("predict")

    def on_predict_end(self, logs=None):
        self._end_alone("predict")

    def _begin(self, name: str) -> None:
        # Not in set_model: an XLACompile further down the list comes after it.
        attachment = require_attachment("CompileReport", self.model)
        session = attachment.session(_KINDS[name])
        self._running.append(_Call(name, self.model, self.params, attachment, session, Stretch(attachment.journal)))
        self._begins = False
        self._calls[name] += 1
        self._write_json(self._running[-1])  # so that a wrong path is known before anything runs

    def _call(self, name: str) -> "_Call":
        """The innermost call of that name. Those within it that are still there have failed."""
        while self._running[-1].name != name:
            self._leave()
        return self._running[-1]

    def _leave(self) -> None:
        self._running.pop()
        if self._running:
            super().set_model(self._running[-1].model)
            self.set_params(self._running[-1].params)

    def _end_period(self, call: "_Call", stretch: Stretch, number: int) -> Period:
        # What ran; where keras_xla runs no steps itself, what Keras has announced.
        steps = call.attachment.steps_done(_KINDS[call.name]) or (call.params or {}).get("steps")
        period = stretch.end(call.name, number, None if steps is None else int(steps))  # JSON knows none of NumPy's
        self.periods.append(period)
        self._write_json(call)
        if self._summaries:
            for tag, value in period.scalars().items():
                self._summaries.scalar(tag, value, number - 1)
            if events := period.events():
                self._summaries.text(f"{period.call}/events", textwrap.indent("\n".join(events), _CODE), number - 1)
            self._summaries.flush()
        return period

    def _end_alone(self, name: str) -> None:
        call = self._call(name)
        self._end(call, self._end_period(call, call.whole, self._calls[name]), unfinished_bar=True)

    def _end(self, call: "_Call", whole: Period, unfinished_bar: bool = False) -> None:
        text = whole.summary(whole.call)
        if whole.history.eventful:
            text += f"\n{report_of(call.model, call.attachment, whole.history)}"
        if self._summaries:
            self._summaries.text(f"{whole.call}/report", textwrap.indent(text, _CODE), whole.number - 1)
            self._summaries.flush()
        self._print(text, unfinished_bar)
        self._leave()

    def _print_epoch(self, call: "_Call") -> None:
        lines, call.unprinted = call.unprinted, []
        if lines:
            self._print("\n".join(lines))

    def _print(self, text: str, unfinished_bar: bool = False) -> None:
        if not self._console:
            return
        if not keras.config.is_interactive_logging_enabled():
            logging.info(text)
            return
        if unfinished_bar and (self.params or {}).get("verbose") in (1, "auto"):
            # Keras finishes the bar after this callback, and writes all of it again then.
            text = ("\r\x1b[K" if sys.stdout.isatty() else "\n") + text
        print(text, flush=True)

    def _write_json(self, call: "_Call") -> None:
        if self._json_path is None:
            return
        content = {
            "format": FORMAT,
            "report": report_of(call.model, call.attachment, call.attachment.journal.snapshot()).to_dict(),
            "peak_memory_mib": peak_memory(),
            "periods": [period.to_dict() for period in self.periods],
        }
        self._json_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._json_path, json.dumps(content, indent=1) + "\n")


@dataclass
class _Call:
    """A call of `fit`, `evaluate` or `predict`, with a `Stretch` for it and one for its epoch."""

    name: str
    model: keras.Model
    params: dict[str, Any] | None
    attachment: Any  # of the model: an `Attachment`
    session: Any  # as the attachment knows it; None where that begins later, or where Keras has it alone
    whole: Stretch
    part: Any = None
    unprinted: list[str] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended: one that failed tells no callback."""
        now = self.attachment.session(_KINDS[self.name])
        return now is not None and self.session in (None, now)
