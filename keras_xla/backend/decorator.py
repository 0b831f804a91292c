"""The decorator of the backend's own that scripts use for functions, replaced while `keras_xla.enable()` is on."""

import importlib

from keras_xla.backend import name as _name

_module = importlib.import_module(f"keras_xla.backend.{_name}.functions.decorator")
replace_functions = _module.replace_functions
restore_functions = _module.restore_functions
