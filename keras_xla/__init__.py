"""XLA for Keras: training, inference and text generation, without its gotchas."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_xla import callbacks
    from keras_xla.backend.events import CompileEvent, CompileLog, RecompileError, compile_log
    from keras_xla.generation.layer import XLAGenerationLayer
    from keras_xla.training.compile import compile
    from keras_xla.training.enable import disable, enable
    from keras_xla.training.errors import XLAUnsupportedError
    from keras_xla.training.explain import explain
    from keras_xla.training.jit import jit
    from keras_xla.training.lengths import bucket_lengths
    from keras_xla.training.pipeline import move_to_pipeline
    from keras_xla.training.report import model_report

# Imported when first used: `python -m keras_xla` must not import Keras before the script has chosen its backend.
_WHERE = {
    "CompileEvent": "backend.events",
    "CompileLog": "backend.events",
    "RecompileError": "backend.events",
    "XLAGenerationLayer": "generation.layer",
    "XLAUnsupportedError": "training.errors",
    "bucket_lengths": "training.lengths",
    "callbacks": "callbacks",
    "compile": "training.compile",
    "compile_log": "backend.events",
    "disable": "training.enable",
    "enable": "training.enable",
    "explain": "training.explain",
    "jit": "training.jit",
    "model_report": "training.report",
    "move_to_pipeline": "training.pipeline",
}
__all__ = [
    "CompileEvent",
    "CompileLog",
    "RecompileError",
    "XLAGenerationLayer",
    "XLAUnsupportedError",
    "bucket_lengths",
    "callbacks",
    "compile",
    "compile_log",
    "disable",
    "enable",
    "explain",
    "jit",
    "model_report",
    "move_to_pipeline",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("backend", "config", "engine", "generation", "models", "training"):  # with all that is in them
        for where in _WHERE.values():
            importlib.import_module(f"{__name__}.{where}")
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    value = module if _WHERE[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
