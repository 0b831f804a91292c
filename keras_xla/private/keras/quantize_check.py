"""Keras' own check of what is to be quantized."""

from keras_xla.private.names import KERAS_SEEN, Name

QUANTIZE_CHECK = Name(
    "keras.Layer",
    "_check_quantize_args",
    "refuses to quantize a layer that computes in float16, before the layer's own `quantize` runs",
    "a layer for generation that computes in float16 can be quantized only while it is loaded",
    KERAS_SEEN,
)


class ChecksQuantizationItself:
    """A layer whose own `quantize` says what it takes: Keras does not say it before."""

    def _check_quantize_args(self, mode: str, compute_dtype: str) -> None:
        pass
