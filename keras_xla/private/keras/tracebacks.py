"""How Keras 3 shortens tracebacks."""

import sys

from keras_xla.private.names import Name, otherwise

HIDDEN = Name(
    "keras.src.utils.traceback_utils",
    "_EXCLUDED_PATHS",
    "the folders whose frames Keras leaves out of tracebacks",
    "tracebacks through Keras show frames of keras_xla, and may lack the one that raised",
    "Keras 3.12 to 3.15.1",
)


@otherwise(None)
def hide_frames(folder: str) -> None:
    """Let Keras leave the frames of a folder out of tracebacks, as it does with its own."""
    module = sys.modules.get(HIDDEN.owner)
    hidden = HIDDEN.of(module)
    if folder not in hidden:
        setattr(module, HIDDEN.name, (*hidden, folder))
