"""A generation that guesses: what guesses cost is measured, and they are paid for with what they have saved."""

import time

import numpy as np
from keras import ops

from keras_xla.engine.generation import Generation

PRICE = 1.5  # steps that it takes to check guesses, beside the one that is made anyway, while nobody has measured it
LEAST_PRICE = 0.05  # that can be told from noise
FREE_CHECKS = 2  # before anything was saved
PLAIN_RUNS = 4  # that tell how long a run without guesses takes
NEVER = -1e9  # steps saved: too few for any check
NEWEST = 0.5  # share of the newest time in an average
FORGOTTEN_AFTER = 400  # runs without a check: what a busy machine made look too dear gets another chance


class RunTimes:
    """How long runs of one model take without guesses, and with them; shared by the generations of one executable."""

    def __init__(self):
        self._called, self._plain, self._checked = False, None, None
        self._since_check = 0

    @property
    def wanting(self) -> bool:
        """Whether the next call should make no guesses, so that there is something to compare with."""
        return self._called and self._plain is None

    @property
    def price(self) -> float:
        """Steps that it takes to check guesses, beside the one that is made anyway."""
        if self._plain is None or self._checked is None:
            return PRICE
        return max(self._checked / self._plain - 1, LEAST_PRICE)

    def took(self, seconds: float | None, plain: int, checked: int) -> None:
        """Learn from a call of so many runs of each kind; `seconds` are None where it compiled."""
        self._called = True
        if seconds is None:
            return
        self._since_check = 0 if checked else self._since_check + plain
        if self._since_check > FORGOTTEN_AFTER:
            self._checked = None
        if not checked and plain:
            self._plain = _averaged(self._plain, seconds / plain)
        elif checked and self._plain is not None:
            self._checked = _averaged(self._checked, max(seconds - plain * self._plain, 0.0) / checked)


class Speculation(Generation):
    """A generation whose executable checks guesses. Its rows may have different numbers of tokens.

    Args:
        times: Of its executable.
        **generation: See `Generation`.

    Attributes:
        runs: `(2,)` int32, how often the model has run: without guesses, and with them.
    """

    def __init__(self, *, times: RunTimes, **generation):
        super().__init__(**generation)
        self._times, self._saved, self._tokens = times, FREE_CHECKS * times.price, 0
        self.runs = np.zeros((2,), np.int32)

    @property
    def _furthest(self) -> int:
        return self._tokens

    def _run(self, key, count: int) -> int:
        count, saved = (min(count, PLAIN_RUNS), NEVER) if self._times.wanting else (count, self._saved)
        budget = np.array([saved, self._times.price], np.float32)
        inputs = map(ops.convert_to_tensor, (np.array([self.step, count], np.int32), budget))
        traces, start = self._executables.trace_count, time.perf_counter()
        outputs = self._executables(key, self._state, self._request, *inputs, weights=self.weights)
        step, more, self._progress, told, saved = outputs
        self.step, self._more = int(step), bool(more)
        self._tokens, *runs = ops.convert_to_numpy(told).tolist()
        seconds = time.perf_counter() - start if self._executables.trace_count == traces else None
        self._times.took(seconds, *runs)
        if budget[0] > NEVER:
            self._saved = float(saved)
        self.runs += runs
        return sum(runs)

    def release(self):
        """See `Generation.release`; -1 stands where a row has no token yet."""
        progress = self._progress
        key, state, tokens = super().release()
        if progress is not None:
            run = self.prompt_end - 1 + ops.convert_to_numpy(progress.lengths)  # the newest token was not
            tokens = np.where(np.arange(tokens.shape[1]) < run[:, None], tokens, -1)
        return key, state, tokens


def _averaged(before: float | None, newest: float) -> float:
    return newest if before is None else (1 - NEWEST) * before + NEWEST * newest
