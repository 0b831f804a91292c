"""How Keras 3 shortens tracebacks."""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable

from keras_xla.private.names import KERAS_SEEN, Gone, Name, otherwise

HIDDEN = Name(
    "keras.src.utils.traceback_utils",
    "_EXCLUDED_PATHS",
    "the folders whose frames Keras leaves out of tracebacks",
    "tracebacks through Keras show frames of keras_xla, and may lack the one that raised",
    "Keras 3.12 to 3.15.1",
)
FILTER = Name(
    "keras.src.utils.traceback_utils",
    "filter_traceback",
    "lets an error of a method of Keras' own have one traceback, without the frames of Keras",
    "errors in `evaluate` and `predict` are shown with the error that led to them",
    KERAS_SEEN,
)
ITERATOR = Name(
    "keras.src.trainers.epoch_iterator",
    "EpochIterator",
    "goes over data, and warns where they end too early",
    "the warning that data have ended names another file than in plain Keras",
    KERAS_SEEN,
)


def filtered(method: Callable) -> Callable:
    """A method in place of one of Keras', whose errors are shown as those of Keras' own."""

    @functools.wraps(method)
    def run(*args, **kwargs):
        return made()(*args, **kwargs)

    @functools.cache
    @otherwise(method)
    def made() -> Callable:
        return FILTER.of_module()(method)

    return run


def warn_as_iterator(message: str) -> None:
    """Warn as if Keras' own loop over data did, for filters by module."""
    module = vars(sys.modules[ITERATOR.owner]) if ITERATOR.owner in sys.modules else {}
    try:
        line = inspect.unwrap(ITERATOR.of_module().catch_stop_iteration).__code__.co_firstlineno
    except (Gone, AttributeError):
        warnings.warn(message, stacklevel=3)
        return
    registry = module.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, UserWarning, module["__file__"], line, ITERATOR.owner, registry)


@otherwise(None)
def hide_frames(folder: str) -> None:
    """Let Keras leave the frames of a folder out of tracebacks, as it does with its own."""
    module = sys.modules.get(HIDDEN.owner)
    hidden = HIDDEN.of(module)
    if folder not in hidden:
        setattr(module, HIDDEN.name, (*hidden, folder))
