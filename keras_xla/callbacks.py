"""Keras callbacks that bring XLA, report on it, and show what a model writes while it learns."""

from typing import TYPE_CHECKING, Any

from keras_xla.training.callbacks import XLACompile
from keras_xla.training.reports.compile_report import CompileReport

if TYPE_CHECKING:
    from keras_xla.generation.generate_samples import GenerateSamples

__all__ = ["CompileReport", "GenerateSamples", "XLACompile"]


def __getattr__(name: str) -> Any:
    if name != "GenerateSamples":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keras_xla.generation.generate_samples import GenerateSamples  # late: who trains need not import generation

    return GenerateSamples
