"""What checks of guesses cost, as tests want it."""

import numpy as np

from keras_xla.engine.runs.speculation import RunTimes


def check_always(monkeypatch):
    """What looks like a guess is checked from now on, whatever it costs; nobody wants to know what that is."""
    monkeypatch.setattr(RunTimes, "free", (1e6, 1e6))
    monkeypatch.setattr(RunTimes, "wanting", False)
    monkeypatch.setattr(RunTimes, "tried", None)
    monkeypatch.setattr(RunTimes, "unmixed", 0)
    monkeypatch.setattr(RunTimes, "may_read", True)
    set_to(monkeypatch, 0.01, "price", "least")


def set_to(monkeypatch, steps, *names):
    """Set `price` or `least` of all sizes of checks: to a number, or to one for each of two sizes."""
    for name in names:
        monkeypatch.setattr(RunTimes, name, property(lambda times: np.broadcast_to(steps, times.sizes)))
