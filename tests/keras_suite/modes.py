"""The ways to run Keras' tests, and what each does to Keras before they are collected."""

import functools
from collections import Counter

import keras

MODES = {
    "plain": "Keras alone",
    "plain-true": "Keras alone, every model compiled with jit_compile=True",
    "auto": 'keras_xla.enable("auto"), as a user has it',
    "forced": '"auto" for every model, with XLA the answer wherever it is possible',
    "true": "jit_compile=True for every model",
}


def begin(mode: str) -> Counter:
    """Make all models that are compiled from now on run as the mode says; returns counts that grow as they run."""
    counts = Counter()
    if not mode.startswith("plain"):
        from tests.keras_suite import ours

        ours.enable(True if mode == "true" else "auto", forced=mode == "forced", counts=counts)
    if mode != "plain":
        _compile_as(mode, counts)
    return counts


def _compile_as(mode: str, counts: Counter) -> None:
    """Take out what a test says of jit_compile, but for "auto": `enable` would leave its model to Keras.

    Models that run eagerly keep it.
    """
    owner = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    before = owner.compile  # keras_xla's, where that is on

    @functools.wraps(before)
    def compile_(self, *args, **kwargs):
        counts["models"] += 1
        if mode != "auto" and not kwargs.get("run_eagerly"):
            kwargs.pop("jit_compile", None)
            if mode == "plain-true":
                kwargs["jit_compile"] = True
        before(self, *args, **kwargs)
        counts["models_ours"] += "fit" in vars(self)

    owner.compile = compile_
