"""XLA for Keras: training, inference and text generation, without its gotchas."""

from keras_xla.backend.events import CompileEvent, CompileLog, compile_log
from keras_xla.engine.compiled import RecompileError
from keras_xla.generation.layer import XLAGenerationLayer

__version__ = "0.1.0"
