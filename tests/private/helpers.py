"""What the tests of private names share."""

from keras_xla.private.names import Name


def names_of(*modules) -> list[Name]:
    """All names that modules of `keras_xla.private` have, each once, in alphabetical order."""
    found = set()
    for value in (value for module in modules for value in vars(module).values()):
        values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        found |= {each for each in values if isinstance(each, Name)}
    return sorted(found, key=str)
