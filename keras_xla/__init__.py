"""XLA for Keras: training, inference and text generation, without its gotchas."""

from keras_xla import callbacks
from keras_xla.backend.events import CompileEvent, CompileLog, RecompileError, compile_log
from keras_xla.generation.layer import XLAGenerationLayer
from keras_xla.training.compile import compile
from keras_xla.training.errors import XLAUnsupportedError
from keras_xla.training.explain import explain
from keras_xla.training.jit import jit

__all__ = [
    "CompileEvent",
    "CompileLog",
    "RecompileError",
    "XLAGenerationLayer",
    "XLAUnsupportedError",
    "callbacks",
    "compile",
    "compile_log",
    "explain",
    "jit",
]
__version__ = "0.1.0"
