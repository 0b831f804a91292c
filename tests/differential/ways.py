"""The sides that are compared, and how keras_xla is led each way."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from unittest import mock

import keras

import keras_xla
from keras_xla.backend.new_shapes import TrialImpossible, WayFailed
from keras_xla.training.decide.policy import Policy

WAYS = ("plain", "tried", "xla", "partial", "true", "any")
ENTRIES = ("compile", "callback", "enable")


@dataclasses.dataclass(frozen=True)
class Side:
    """Plain Keras, or keras_xla led one way.

    Attributes:
        way: `"plain"` (the plain graph), `"tried"` (the plain graph after a trial of XLA that was undone), `"xla"`,
            `"partial"` (in parts), `"true"` (`jit_compile=True`), `"any"` (what the policy finds); `""` for plain
            Keras.
        entry: `"compile"` (`keras_xla.compile`), `"callback"` (`XLACompile` in every fit) or `"enable"`.
    """

    way: str = ""
    entry: str = "compile"

    @property
    def jit_compile(self) -> bool | str:
        return True if self.way == "true" else "auto"

    @property
    def exact(self) -> bool:
        """Whether nothing may be rounded otherwise than in plain Keras."""
        return self.way in ("", "plain", "tried", "any")

    def compile(self, model: keras.Model, **options) -> None:
        if self.way and self.entry == "compile":
            keras_xla.compile(model, jit_compile=self.jit_compile, **options)
        else:
            model.compile(**options)

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """What every `fit` gets beside its own callbacks."""
        ours = self.way and self.entry == "callback"
        return [keras_xla.callbacks.XLACompile(self.jit_compile)] if ours else []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """While a script runs on this side."""
        enabled = self.way and self.entry == "enable"
        if enabled:
            keras_xla.enable(self.jit_compile)
        try:
            with forced(self.way):
                yield
        finally:
            if enabled:
                keras_xla.disable()


def forced(way: str) -> contextlib.AbstractContextManager:
    """Have the policy answer with this way, after the trials that it takes to find it faster."""
    return (
        mock.patch.object(Policy, "_auto", _answer(way))
        if way in ("plain", "tried", "xla", "partial")
        else contextlib.nullcontext()
    )


def _answer(way: str) -> Callable:
    """What stands in for the decision of "auto", and for nothing else."""

    def answer(_policy, question) -> tuple[str, str, dict[str, float]]:
        facts = question.facts
        if facts.unsafe:  # never led through XLA, nor tried
            return "graph", "unsafe", {}
        chosen = "xla" if way == "xla" and not facts.blocked else "partial"
        if way == "partial" and not (facts.blocked or facts.tower):  # no part would be left out
            chosen = "xla"
        try:
            for name in ("graph",) if way == "plain" else ("graph", chosen):
                question.trial(name, 1, 0.0)
        except TrialImpossible as error:  # as for the policy: no trial, and the step says what is wrong
            return "graph", f"no trial: {error}", {}
        except WayFailed as error:
            return "graph", f"{chosen} failed: {error}", {}
        return ("graph" if way in ("plain", "tried") else chosen), "forced by the test", {}

    return answer
