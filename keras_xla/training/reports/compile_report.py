"""`CompileReport`: what was compiled and decided while `fit`, `evaluate` or `predict` ran, and what it brought."""

import json
import os
import pathlib
import sys
import textwrap
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
_NO_CALL: Any = ("", None, None, ())
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
        self._attachment: Any = None  # an `Attachment`, since a call has begun
        self._calls = dict.fromkeys(_KINDS, 0)
        # Of the call that goes on: which it is, a `Stretch` for it and one for its epoch, and what is to be printed.
        self._call, self._whole, self._part, self._unprinted = _NO_CALL
        self._outer: list[tuple] = []  # the same of calls around it

    def set_model(self, model: keras.Model) -> None:
        """Begin anew for another model."""
        super().set_model(model)
        if model is not self._reported:
            self._reported, self.periods, self._calls = model, [], dict.fromkeys(self._calls, 0)
        if self._call and not self._attachment.goes_on(_KINDS[self._call]):  # a call that failed left it
            self._call, self._whole, self._part, self._unprinted = _NO_CALL
            self._outer.clear()

    def on_train_begin(self, logs=None):
        self._begin("fit")

    def on_epoch_begin(self, epoch, logs=None):
        self._back_to("fit")
        self._print_epoch()
        self._part = Stretch(self._attachment.journal)

    def on_epoch_end(self, epoch, logs=None):
        self._back_to("fit")
        period = self._end_period(self._part, epoch + 1)
        self._unprinted = [period.summary(f"epoch {epoch + 1}"), *period.events()]

    def on_train_end(self, logs=None):
        self._back_to("fit")
        self._print_epoch()
        self._end(self._whole.end("fit", self._calls["fit"]))

    def on_test_begin(self, logs=None):
        if self._call == "fit" and self._part is not None:
            self._part.begin_validation()
        else:
            self._begin("evaluate")

    def on_test_end(self, logs=None):
        if self._call == "fit":
            self._part.end_validation()
        else:
            self._end(self._end_period(self._whole, self._calls["evaluate"]), unfinished_bar=True)

    def on_predict_begin(self, logs=None):
        self._begin("predict")

    def on_predict_end(self, logs=None):
        self._end(self._end_period(self._whole, self._calls["predict"]), unfinished_bar=True)

    def _begin(self, call: str) -> None:
        # Not in set_model: an XLACompile further down the list comes after it.
        self._attachment = require_attachment("CompileReport", self._reported)
        if self._call:  # it runs in a callback of that one
            self._outer.append((self._call, self._whole, self._part, self._unprinted))
        self._call, self._whole, self._part, self._unprinted = call, Stretch(self._attachment.journal), None, []
        self._calls[call] += 1
        self._write_json()  # so that a wrong path is known before anything runs

    def _end_period(self, stretch: Stretch, number: int) -> Period:
        # What ran; where keras_xla runs no steps itself, what Keras has announced.
        steps = self._attachment.steps_done(_KINDS[self._call]) or (self.params or {}).get("steps")
        period = stretch.end(self._call, number, None if steps is None else int(steps))  # JSON knows none of NumPy's
        self.periods.append(period)
        self._write_json()
        if self._summaries:
            for tag, value in period.scalars().items():
                self._summaries.scalar(tag, value, number - 1)
            if events := period.events():
                self._summaries.text(f"{period.call}/events", textwrap.indent("\n".join(events), _CODE), number - 1)
            self._summaries.flush()
        return period

    def _back_to(self, call: str) -> None:
        """Leave calls within this one that have failed, without an end of their own."""
        while self._call != call and self._outer:
            self._leave()

    def _leave(self) -> None:
        self._call, self._whole, self._part, self._unprinted = self._outer.pop() if self._outer else _NO_CALL

    def _end(self, whole: Period, unfinished_bar: bool = False) -> None:
        self._leave()
        text = whole.summary(whole.call)
        if whole.history.eventful:
            text += f"\n{report_of(self._reported, self._attachment, whole.history)}"
        if self._summaries:
            self._summaries.text(f"{whole.call}/report", textwrap.indent(text, _CODE), whole.number - 1)
            self._summaries.flush()
        self._print(text, unfinished_bar)

    def _print_epoch(self) -> None:
        lines, self._unprinted = self._unprinted, []
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

    def _write_json(self) -> None:
        if self._json_path is None:
            return
        content = {
            "format": FORMAT,
            "report": report_of(self._reported, self._attachment, self._attachment.journal.snapshot()).to_dict(),
            "peak_memory_mib": peak_memory(),
            "periods": [period.to_dict() for period in self.periods],
        }
        self._json_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._json_path, json.dumps(content, indent=1) + "\n")
