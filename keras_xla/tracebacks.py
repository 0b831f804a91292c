"""Tracebacks as users read them: without frames of this package, as Keras leaves out its own."""

import os
import sys
import types

FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_HIDDEN = (FOLDER, os.path.join("tensorflow", "python"))


def hide_ours(error: BaseException) -> None:
    """Leave out the frames of this package and of TensorFlow, but for the one that raised.

    The first, which handles the error, is left out in any case, and `raise` without an error does not add it again.
    `keras.config.disable_traceback_filtering()` shows all others.
    """
    config = getattr(sys.modules.get("keras"), "config", None)
    traceback = error.__traceback__ and error.__traceback__.tb_next
    if config is None or config.is_traceback_filtering_enabled():
        traceback = _filtered(traceback)
    BaseException.with_traceback(error, traceback)  # an error that lets nobody set attributes, too


def _filtered(traceback: types.TracebackType | None) -> types.TracebackType | None:
    kept = []
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if traceback.tb_next is None or not any(folder in file for folder in _HIDDEN):
            kept.append(traceback)
        traceback = traceback.tb_next
    made = None
    for each in reversed(kept):
        made = types.TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made
