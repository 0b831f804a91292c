"""Keras callbacks that bring XLA, and report on it."""

from keras_xla.training.callbacks import XLACompile
from keras_xla.training.reports.compile_report import CompileReport

__all__ = ["CompileReport", "XLACompile"]
