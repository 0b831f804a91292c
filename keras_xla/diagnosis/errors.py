"""The errors of the training side."""


class XLAUnsupportedError(ValueError):
    """A layer or an operation cannot be compiled by XLA; the message names it, where it is, and the fix."""
