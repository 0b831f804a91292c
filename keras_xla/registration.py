"""Keras finds the classes of saved models as soon as `keras_xla` is imported, before or after Keras itself.

Nothing else is imported for it: a stand-in is registered, which imports the class when a model is loaded.
"""

import importlib
import importlib.machinery
import sys
from typing import Any

_CLASSES = {
    "CompiledFunction": "keras_xla.functions.jit",
    "EncoderDecoderModel": "keras_xla.models.encoder_decoder",
    "LogMel": "keras_xla.models.layers.log_mel",
    "Transformer": "keras_xla.models.transformer",
    "XLAGenerationLayer": "keras_xla.generation.layer",
}


def register() -> None:
    """Register all classes; now, or while Keras is being imported."""
    if not _register_now():
        sys.meta_path.insert(0, _AfterSaving())


class _AfterSaving:
    """Registers as soon as Keras has run `keras.saving`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "keras.saving":
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module: Any) -> None:
            run(module)
            _register_now()
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        spec.loader.exec_module = run_and_register
        return spec


def _register_now() -> bool:
    custom_objects = getattr(sys.modules.get("keras.saving"), "get_custom_objects", None)
    if custom_objects is None:
        return False
    for name, module in _CLASSES.items():
        custom_objects().setdefault(f"keras_xla>{name}", _stand_in(name, module))
    return True


def _stand_in(name: str, module: str) -> type:
    def from_config(config: dict) -> Any:
        # The import registers the class itself.
        return getattr(importlib.import_module(module), name).from_config(config)

    return type(name, (), {"__module__": module, "from_config": staticmethod(from_config)})
