"""Losses of XLA that may be due to other work on the machine, and so are measured again later."""

SHARE_OF_STEPS_BEFORE = 0.1  # of the steps to come, that run before another trial
MOST_TRIALS = 3  # of a graph, over all runs; then a near miss is one


class SecondOpinions:
    """When to measure batches of some shapes again."""

    def __init__(self):
        self._after: dict[tuple, float] = {}

    def plan(self, shapes: tuple, steps_done: int, steps_to_come: float) -> None:
        """Measure batches of these shapes again, later in this call."""
        self._after[shapes] = steps_done + SHARE_OF_STEPS_BEFORE * steps_to_come

    def is_due(self, shapes: tuple, steps_done: int) -> bool:
        """Whether it is time."""
        return shapes in self._after and steps_done >= self._after[shapes]

    def done(self, shapes: tuple) -> None:
        """Take note that they are measured now."""
        self._after.pop(shapes, None)
