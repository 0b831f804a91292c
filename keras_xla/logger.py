"""The logger `keras_xla`: what was decided and what was compiled, for who asks for it."""

import logging
import os

logger = logging.getLogger("keras_xla")
if logger.level == logging.NOTSET:  # a script that asks for its own log at INFO has not asked for ours
    logger.setLevel(logging.WARNING)
VARIABLE = "KERAS_XLA_LOG_LEVEL"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def show_what_is_asked_for() -> None:
    """Write what the environment variable asks for to stderr; without it the script's own logging decides.

    Raises:
        ValueError: the variable names no level.
    """
    level = os.environ.get(VARIABLE)
    if not level:
        return
    if level.upper() not in _LEVELS:
        raise ValueError(f"Received {VARIABLE}={level!r} from the environment; expected one of {', '.join(_LEVELS)}.")
    logger.setLevel(level.upper())
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False  # absl, which TensorFlow imports, would write each line once more
