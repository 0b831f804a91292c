"""A generation that guesses: what guesses cost is measured, and they are paid for with what they have saved."""

import threading
import time
from collections.abc import Callable

import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.engine.executables import SpeculateKey
from keras_xla.engine.runs.generation import Generation
from keras_xla.engine.search.speculate import FREE_CHECKS, GAIN, LEAST_FREE

PRICE = 1.5  # steps that it takes to check guesses, beside the one that is made anyway, while nobody has measured it
LEAST_PRICE = 0.05  # that can be told from noise
PLAIN_RUNS = 4  # that tell how long a run without guesses takes
PRICED_CHECKS = 4  # that tell what a check costs
PLAIN_EVERY = 256  # runs: what a busy machine made slow, or quick, is measured again
PATIENCE = PLAIN_EVERY  # runs without a check until what was too dear is tried again
PATIENCE_OF_READER = 4 * PLAIN_EVERY  # the same with an assistant, which has to read the text for that
MOST_PATIENCE = 64 * PLAIN_EVERY  # runs: checks that are too dear each time are tried less and less often, up to that
QUICKER = 0.8  # times what it should have taken is too quick to be true
MARGIN = 1.5  # times the price: what good guesses have to bring, for a check that is just worth it brings nothing
NEVER = -1e9  # steps saved: too few for any check


class RunTimes:
    """How long runs of one executable take without guesses, and with them. Threads may share it.

    Args:
        reads: Whether whoever guesses has to read the text before.
    """

    def __init__(self, reads: bool = False):
        self._lock, self._called = threading.Lock(), False
        self._plain: float | None = None  # seconds a run
        self._checked: float | None = None
        self._since_plain = self._since_check = 0  # runs
        self._least_patience = self._patience = PATIENCE_OF_READER if reads else PATIENCE
        self._left: np.ndarray | None = None  # [2] checks

    @property
    def wanting(self) -> bool:
        """Whether the next call should make no guesses, so that there is something to compare with."""
        with self._lock:
            return self._called and (self._plain is None or self._since_plain >= PLAIN_EVERY)

    @property
    def unmixed(self) -> int:
        """0, or the most checks of the next call, which then is all checks, or all runs without."""
        with self._lock:
            return PRICED_CHECKS if self._called and self._checked is None else 0

    @property
    def free(self) -> tuple[float, float]:
        """Checks that a generation can pay for before it has saved anything.

        They are what another one had left, within limits. So texts that nobody can guess cost little each, if there are
        many. While nobody knows the price, they are enough to tell it.
        """
        with self._lock:
            if self._left is None or self._checked is None:
                return FREE_CHECKS
            return tuple(np.clip(self._left, LEAST_FREE, FREE_CHECKS).tolist())

    def left(self, checks: np.ndarray) -> None:
        """Learn what a generation can pay for after a call, `[2]`."""
        with self._lock:
            self._left = checks

    @property
    def price(self) -> float:
        """Steps that it takes to check guesses, beside the one that is made anyway."""
        with self._lock:
            if self._plain is None or self._checked is None:
                return PRICE
            return max(self._checked / self._plain - 1, LEAST_PRICE)

    @property
    def least(self) -> float:
        """Tokens a row that good guesses have to bring; none while nobody knows what a check costs."""
        with self._lock:
            known = self._plain is not None and self._checked is not None
        return MARGIN * self.price if known else 0.0

    def took(self, seconds: float | None, plain: int, checked: int) -> None:
        """Learn from a call of so many runs of each kind; `seconds` are None where it compiled."""
        with self._lock:
            self._called = True
            if seconds is None or not plain + checked:
                return
            self._since_plain += plain + checked
            self._since_check = 0 if checked else self._since_check + plain
            if self._since_check > self._patience and self._dear:  # it gets another chance
                self._checked, self._since_check = None, 0
                self._patience = min(2 * self._patience, MOST_PATIENCE)
            if not checked:
                self._since_plain = 0
                self._plain = seconds / plain if self._plain is None else (self._plain + seconds / plain) / 2
            elif self._plain is not None and seconds < QUICKER * (plain + checked) * self._plain:
                self._plain = self._checked = None  # a check takes no less than a run: the machine was busy then
            elif self._plain is not None:
                before = (1 + PRICE) * self._plain if self._checked is None else self._checked
                share = checked / (plain + checked)  # what is left of many runs without guesses is mostly noise
                self._checked = (1 - share) * before + share * (seconds - plain * self._plain) / checked
                self._patience = self._patience if self._dear else self._least_patience

    @property
    def _dear(self) -> bool:
        """Whether a check is known to cost more than is assumed of one; the lock is held."""
        if self._checked is None:
            return False
        return self._plain is None or self._checked > (1 + PRICE) * self._plain


class Speculation(Generation):
    """A generation whose executable checks guesses. Its rows may have different numbers of tokens.

    Args:
        times: From the key of an executable to its times.
        draft_weights: Values of an assistant's variables.
        **generation: See `Generation`.

    Attributes:
        runs: `(2,)` int32, how often the model has run: without guesses, and with them.
    """

    def __init__(self, *, times: Callable[[SpeculateKey], RunTimes], draft_weights: list, **generation):
        super().__init__(**generation)
        self._times, self._draft_weights = times, draft_weights
        self._saved: np.ndarray | None = None  # [3], see `speculate.advance`
        self._tokens = 0
        self.runs = np.zeros((2,), np.int32)

    @property
    def _furthest(self) -> int:
        return self._tokens

    def _run(self, key: SpeculateKey, count: int) -> int:
        times = self._times(key)
        price = times.price
        saved = np.array([*(np.array(times.free) * price), GAIN]) if self._saved is None else self._saved
        wanting, unmixed = times.wanting, times.unmixed
        count = min(count, PLAIN_RUNS) if wanting else count
        reads = bool(key.assistant) and not self.runs[1]  # it reads the text at the first check of an answer
        unmixed = min(unmixed, 1) if reads else unmixed
        # A row that a stop string ended would go on guessing.
        stopped = [row in self._stopped for row in range(self.batch)]
        limits = np.array([self.step, count, unmixed, *stopped], np.int32)
        budget = np.array([*(saved[:2] + (NEVER if wanting else 0)), saved[2], price, times.least], np.float32)
        inputs = map(backend.to_device, (limits, budget))
        waits, start = self._executables.compiles(key), time.perf_counter()
        weights = [*self.weights, *self._draft_weights]
        outputs = self._executables(key, self._state, self._request, *inputs, weights=weights)
        step, more, self._progress, told, left = outputs
        self.step, self._more = int(step), bool(more)
        self._tokens, *runs = ops.convert_to_numpy(told).tolist()
        tells = not waits and not (reads and runs[1])
        times.took(time.perf_counter() - start if tells else None, *runs)
        self._saved = saved if wanting else ops.convert_to_numpy(left)
        if not wanting and not waits:
            times.left(self._saved[:2] / price)
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
