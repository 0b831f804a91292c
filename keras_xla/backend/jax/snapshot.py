"""Whether variables still hold what they held."""

from collections.abc import Sequence

import keras


class Snapshot:
    """The values of variables at one time; nothing is copied, for JAX's arrays never change."""

    def __init__(self, variables: Sequence[keras.Variable]):
        self._variables = list(variables)
        self._values = [variable.value for variable in self._variables]

    def holds(self) -> bool:
        """Whether no variable has been assigned to since then."""
        return all(variable.value is value for variable, value in zip(self._variables, self._values, strict=True))
