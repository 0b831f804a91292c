"""Whether variables still hold what they held."""

from collections.abc import Sequence

import keras
import numpy as np


class Snapshot:
    """The values of variables at one time; nothing is copied.

    TensorFlow changes a variable in place only where nobody else holds its value. The snapshot does, so that whatever
    is assigned from now on stands in memory of its own. The price: after that the old values stay in memory, too, until
    the snapshot is gone.
    """

    def __init__(self, variables: Sequence[keras.Variable]):
        self._variables = list(variables)
        self._values = self._now()

    def holds(self) -> bool:
        """Whether no variable has been assigned to since then."""
        return all(now.ctypes.data == then.ctypes.data for now, then in zip(self._now(), self._values, strict=True))

    def _now(self) -> list[np.ndarray]:
        # Views on a CPU. A GPU's are copies, which never stand where those of then do: there it never holds.
        return [np.asarray(variable.value.value()) for variable in self._variables]
