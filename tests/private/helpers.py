"""What the tests of private names share."""

from keras_xla.private.names import Name


def names_of(module) -> list[Name]:
    """All names that a module of `keras_xla.private` has."""
    found = []
    for value in vars(module).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        found += [each for each in values if isinstance(each, Name)]
    return found
