"""Dataclasses that show themselves as the Python that makes them, without what is as usual."""

import dataclasses


class Shown:
    """A mixin for frozen dataclasses with `repr=False`."""

    def __repr__(self):
        given = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({', '.join(given)})"
