"""XLA for Keras: training, inference and text generation, without its gotchas."""

import importlib
from typing import TYPE_CHECKING, Any

from keras_xla.logger import show_what_is_asked_for as _show_what_is_asked_for
from keras_xla.registration import register as _register

if TYPE_CHECKING:
    from keras_xla import callbacks
    from keras_xla.backend.compile_log import CompileEvent, CompileLog, RecompileError, compile_log
    from keras_xla.backend.executable_cache.cache import compile_cache
    from keras_xla.diagnosis.errors import XLAUnsupportedError
    from keras_xla.diagnosis.explain import explain
    from keras_xla.functions.jit import jit
    from keras_xla.generation.layer import XLAGenerationLayer
    from keras_xla.training.compile import compile
    from keras_xla.training.data.bucket_lengths import bucket_lengths
    from keras_xla.training.data.move_to_pipeline import move_to_pipeline
    from keras_xla.training.enable import disable, enable
    from keras_xla.training.reports.model_report import model_report

# Imported when first used: `python -m keras_xla` must not import Keras before the script has chosen its backend.
_WHERE = {
    "CompileEvent": "backend.compile_log",
    "CompileLog": "backend.compile_log",
    "RecompileError": "backend.compile_log",
    "XLAGenerationLayer": "generation.layer",
    "XLAUnsupportedError": "diagnosis.errors",
    "bucket_lengths": "training.data.bucket_lengths",
    "callbacks": "callbacks",
    "compile": "training.compile",
    "compile_cache": "backend.executable_cache.cache",
    "compile_log": "backend.compile_log",
    "disable": "training.enable",
    "enable": "training.enable",
    "explain": "diagnosis.explain",
    "jit": "functions.jit",
    "model_report": "training.reports.model_report",
    "move_to_pipeline": "training.data.move_to_pipeline",
}
_ROOMS = ("backend", "config", "diagnosis", "engine", "functions", "generation", "models", "training")
__all__ = [
    "CompileEvent",
    "CompileLog",
    "RecompileError",
    "XLAGenerationLayer",
    "XLAUnsupportedError",
    "bucket_lengths",
    "callbacks",
    "compile",
    "compile_cache",
    "compile_log",
    "disable",
    "enable",
    "explain",
    "jit",
    "model_report",
    "move_to_pipeline",
]
__version__ = "0.1.0"

_show_what_is_asked_for()
_register()


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    value = module if _WHERE[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
