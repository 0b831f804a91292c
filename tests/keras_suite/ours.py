"""keras_xla as Keras' tests meet it. What depends on names inside keras_xla is here."""

import functools
from collections import Counter

import keras_xla
from keras_xla import backend
from keras_xla.backend.new_shapes import TrialImpossible, WayFailed
from keras_xla.training.attach import METHODS, Attachment
from keras_xla.training.decide.policy import Policy
from keras_xla.training.reports.journal import Journal


def enable(jit_compile: bool | str, forced: bool, counts: Counter) -> None:
    """Turn keras_xla on.

    Args:
        jit_compile: As `keras_xla.enable` takes it.
        forced: Whether `"auto"` chooses XLA wherever it can.
        counts: Grow with what runs.
    """
    keras_xla.enable(jit_compile)
    _count(counts)
    if forced:
        _force_xla()


def _force_xla() -> None:
    """Let `"auto"` try the plain graph and XLA as ever, and choose XLA whatever the clock said."""

    def answer(self, question):
        if question.facts.unsafe:  # a user's "auto" never compiles these
            return "graph", "unsafe", {}
        way = "partial" if question.facts.blocked or question.facts.tower else "xla"
        question.trial("graph", 1, 0)
        try:
            question.trial(way, 1, 0)
        except (
            TrialImpossible,
            WayFailed,
        ) as error:  # the first where the batch has values that only plain Keras shall see
            return "graph", f"{way} failed: {error}", {}
        return way, "forced", {}

    Policy._auto = answer


def _count(counts: Counter) -> None:
    """Count the calls of models that keras_xla runs, and those of them that went through XLA."""

    method = Attachment.call

    @functools.wraps(method)
    def call(self, kind, /, *args, **kwargs):
        counts[METHODS[kind]] += 1
        try:
            return method(self, kind, *args, **kwargs)
        finally:
            compiled = any(c.event.kind == kind for c in self.journal.compilations)
            decisions = [d for d in self.journal.decisions if d.kind == kind]
            chosen = backend.name == "jax" or any(d.way != "graph" for d in decisions)
            counts[f"{METHODS[kind]}_xla"] += compiled and chosen

    Attachment.call = call

    def noted(method, add):
        @functools.wraps(method)
        def note(self, *args, **kwargs):
            add(*args, **kwargs)
            return method(self, *args, **kwargs)

        return note

    def decided(decision):
        counts[f"decided_{decision.way}"] += 1

    def compiled(event):
        counts["compilations"] += 1

    Journal.decided, Journal.compiled = noted(Journal.decided, decided), noted(Journal.compiled, compiled)
