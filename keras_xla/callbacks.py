"""Keras callbacks that bring XLA."""

from keras_xla.training.callbacks import XLACompile

__all__ = ["XLACompile"]
