"""How many steps of one kind have run, and how many are to come."""

from collections.abc import Callable
from dataclasses import dataclass

from keras_xla.training.reports.journal import Journal
from keras_xla.training.session import Session

STEPS_OF_AN_UNKNOWN_EPOCH = 200  # of data that do not tell their length


@dataclass(frozen=True)
class Progress:
    """Of one kind of step of one model.

    Args:
        kind: `"train"`, `"test"` or `"predict"`.
        journal: Has the steps that ran.
        session: Gives the call that is going on, or None.
    """

    kind: str
    journal: Journal
    session: Callable[[], Session | None]

    @property
    def done(self) -> int:
        """Steps that have run."""
        return sum(tally.steps for (kind, _), tally in self.journal.tallies.items() if kind == self.kind)

    @property
    def to_come(self) -> float:
        """Steps that are expected: who came back so often will come again."""
        session = self.session()
        left = session.left() if session is not None else None
        if left is None:
            left = STEPS_OF_AN_UNKNOWN_EPOCH * (session.epochs if session is not None else 1)
        return max(left, self.done)

    @property
    def times_more(self) -> float:
        """How many times as many steps as have run are to come."""
        return self.to_come / max(self.done, 1)
