"""A generation that guesses: what guesses cost is measured, and they are paid for with what they have saved."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.engine.keys import SpeculateKey
from keras_xla.engine.runs.generation import Generation
from keras_xla.engine.search.assistant import Assistant
from keras_xla.engine.search.speculate import FREE_CHECKS, LEAST_FREE, MOST_CHECKS, SLACK, UNKNOWN

PRICE = 1.5  # steps that it takes to check guesses, beside the one that is made anyway, while nobody has measured it
LEAST_PRICE = 0.05  # that can be told from noise
PLAIN_RUNS = 4  # that tell how long a run without guesses takes
PRICED_CHECKS = 4  # that tell what a check costs; one is enough where that was measured before
PLAIN_EVERY = 256  # runs: what a busy machine made slow, or quick, is measured again
PATIENCE = PLAIN_EVERY  # runs without checks of a size until it is tried again: its price may have been wrong
PATIENCE_OF_READER = 4 * PLAIN_EVERY  # the same with an assistant, whose guesses take runs of their own
PATIENCE_IN_USE = 64  # the same for a size that an assistant gained by: then rather the machine has become slower
MOST_PATIENCE = 64 * PLAIN_EVERY  # runs: what does not pay each time is tried less and less often, up to that
LEARN_PLAIN, LEARN_CHECK = 0.5, 0.25  # how much of what a call took longer than thought is believed
QUICKER = 0.8  # times what it should have taken is too quick to be true
GAIN_OVER_PRICE = 1.5  # times the price: what good guesses have to bring, as a check just worth it brings nothing
GAIN_OVER_PRICE_OF_READER = 1.2  # the same with an assistant, whose next guesses are much like its last ones
NEVER = -1e9  # steps saved: too few for any check
FREE_READINGS = 1  # measured ones, of an assistant, that need not be paid for
MOST_READINGS = 4.0  # that can be paid for at most with what earlier answers have saved
LEAST_READING = 8.0  # steps that one is taken for in that, at least


class _Check:
    """What is known of checks of one size."""

    def __init__(self, patience: int):
        self.steps: float | None = None  # that a run takes
        self.doubtful = False  # whether it is time to measure that again
        self.since = 0  # runs of other kinds
        self.patience = patience

    @property
    def unsure(self) -> bool:
        return self.steps is None or self.doubtful


class Plan(NamedTuple):
    """What a call of an executable is to do; see the properties of `RunTimes`."""

    may_read: bool

    wanting: bool
    tried: int | None
    unmixed: int
    free: tuple[float, float]
    gain: float
    price: np.ndarray
    least: np.ndarray


class RunTimes:
    """How long runs of one executable take without guesses, and with each number of them. Threads may share it.

    Args:
        sizes: N, how many numbers of guesses there are, see `speculate.sizes_of`.
        reads: Whether whoever guesses has to read the text before.

    Attributes:
        sizes: N.
    """

    def __init__(self, sizes: int = 1, reads: bool = False):
        self.sizes = sizes
        self._lock, self._called = threading.RLock(), False
        self._reads, self._readings = reads, 0
        self._reading: float | None = None  # steps
        self._earned = 0.0  # steps that answers have been made in less, with an assistant
        self._plain: float | None = None  # seconds a run
        self._since_plain = 0  # runs
        self._patience_in_use = PATIENCE_IN_USE if reads else PATIENCE
        self._checks = [_Check(PATIENCE_OF_READER if reads else PATIENCE) for _ in range(sizes)]
        # The first run of a kind takes several times as long as the others, as a part of the executable is new then.
        self._ran = np.zeros(1 + sizes, bool)
        self._left: np.ndarray | None = None  # [2] checks of the smallest size
        self._gain = UNKNOWN  # tokens

    def plan(self) -> Plan:
        """All that a call has to know, of one moment: other threads learn meanwhile."""
        with self._lock:
            return Plan(
                self.may_read, self.wanting, self.tried, self.unmixed, self.free, self.gain, self.price, self.least
            )

    @property
    def may_read(self) -> bool:
        """Whether the assistant may read the text of an answer in which it has not been asked yet.

        That takes as long as many steps, and has to be paid for by what other answers have gained: texts that it cannot
        guess would cost a reading each.
        """
        with self._lock:
            return not self._reads or self._readings < FREE_READINGS or self._earned >= 0

    @property
    def reading(self) -> float:
        """Steps that it takes the assistant to read a text; 0 where it reads none, or while nobody knows."""
        with self._lock:
            return self._reading or 0.0

    def read(self, seconds: float | None, plain: int, *checked: int) -> None:
        """Learn from a call in which the assistant has read the text, as from `took`."""
        with self._lock:
            known = all(ran or not count for count, ran in zip(checked, self._ran[1:], strict=True))
            if seconds is None or self._plain is None or not known:  # what is new takes several times as long
                return
            self._readings += 1
            steps = max(seconds / self._plain - plain - float(np.dot(checked, 1 + self.price)), 0.0)
            if self._reading is None:
                self._reading = steps
            else:  # one that the machine made slow counts little
                self._reading = (self._reading + min(steps, 2 * self._reading + 1)) / 2

    def earn(self, steps: float) -> None:
        """Count steps that an answer has been made in less, or (below 0) in more, than without the assistant."""
        with self._lock:
            most = MOST_READINGS * max(self._reading or 0.0, LEAST_READING)
            self._earned = float(np.clip(self._earned + steps, -SLACK * MOST_PATIENCE, most))

    @property
    def wanting(self) -> bool:
        """Whether the next call should make no guesses, so that there is something to compare with."""
        with self._lock:
            return self._called and (self._plain is None or self._since_plain >= PLAIN_EVERY)

    @property
    def tried(self) -> int | None:
        """Which size of checks the next call should try wherever it can, as nobody knows for sure what it costs."""
        with self._lock:
            for size, check in enumerate(self._checks if self._called else ()):
                if check.unsure:
                    return size
                if self._is_dear(check):
                    return None  # more guesses cost more
            return None

    @property
    def unmixed(self) -> int:
        """0, or the most checks of the next call, which then is all checks of one size, or all runs without."""
        with self._lock:
            tried = self.tried
            if tried is None:
                return 0
            return PRICED_CHECKS if self._ran[1 + tried] and self._checks[tried].steps is None else 1

    @property
    def free(self) -> tuple[float, float]:
        """Checks of the smallest size that a generation can pay for before it has saved anything.

        They are what another one had left, within limits. So texts that nobody can guess cost little each, if there are
        many. While nobody knows the price, they are enough to tell it. An assistant that has guessed well will do so
        again, more than a text that was repeated: it keeps all that it has saved, so that one bad guess at an answer's
        beginning is not its last one there.
        """
        with self._lock:
            if self._left is None or self._checks[0].steps is None:
                return FREE_CHECKS
            most = np.array(MOST_CHECKS) * self.price[-1] / self.price[0] if self._reads else FREE_CHECKS
            return tuple(np.clip(self._left, LEAST_FREE, most).tolist())

    @property
    def gain(self) -> float:
        """Tokens that good guesses without end are thought to bring as a generation begins, or `UNKNOWN`.

        With an assistant that is what the last answer has shown, if that is much; of another text nobody knows.
        """
        with self._lock:
            return self._gain if self._reads and self._gain > Assistant.gain else UNKNOWN

    def left(self, checks: np.ndarray, gain: float) -> None:
        """Learn what a generation can pay for after a call, `[2]`, and what good guesses without end would bring."""
        with self._lock:
            self._left, self._gain = checks, gain

    @property
    def price(self) -> np.ndarray:
        """For each size, how many steps it takes to check guesses, beside the one that is made anyway: `[N]`."""
        with self._lock:
            return np.maximum.accumulate(np.array([self._price(check) for check in self._checks], np.float32))

    @property
    def least(self) -> np.ndarray:
        """Tokens that good guesses have to bring a row, `[N]`; 0 for the size that is tried."""
        with self._lock:
            tried = np.arange(self.sizes) == self.tried
            over = GAIN_OVER_PRICE_OF_READER if self._reads else GAIN_OVER_PRICE
            return np.where(tried, 0, over * self.price) if self._called else np.zeros(self.sizes)

    def took(self, seconds: float | None, plain: int, *checked: int) -> None:
        """Learn from a call of so many runs of each kind; `seconds` are None where it compiled."""
        with self._lock:
            self._called, total = True, plain + sum(checked)
            ran = np.array([plain, *checked]) > 0
            first = np.any(ran & ~self._ran)
            self._ran |= ran
            if seconds is None or not total:
                return
            self._since_plain += total
            for check, count in zip(self._checks, checked, strict=True):
                check.since = 0 if count else check.since + total
                if check.since > check.patience and not check.unsure:  # it gets another chance
                    check.doubtful, check.since = True, 0
                    check.patience = min(2 * check.patience, MOST_PATIENCE)
            if first:
                return
            if plain == total:
                self._since_plain = 0
                self._plain = seconds / plain if self._plain is None else (self._plain + seconds / plain) / 2
            elif self._plain is not None and seconds < QUICKER * total * self._plain:
                self._plain = None  # a check takes no less than a run: the machine was busy then
                for check in self._checks:  # what was compared with that
                    check.doubtful = check.steps is not None
            elif self._plain is not None:
                self._learn(self._plain, seconds / self._plain, plain, checked)

    def _learn(self, before: float, steps: float, plain: int, checked: Sequence[int]) -> None:
        """From a call that took so many `steps` of `before` seconds each; the lock is held.

        A machine that is busy makes all runs slower, and a run without guesses is measured again now and then only. So
        each kind of run has the more to do with what a call took longer than thought, the more of it was of that kind.
        """
        took = {each: count * (1 + self._price(each)) for each, count in zip(self._checks, checked, strict=True)}
        expected = plain + sum(took.values())
        slower = steps / expected - 1
        self._plain = before * (1 + LEARN_PLAIN * plain / expected * slower)
        for check in filter(took.get, self._checks):
            learn = 1.0 if check.steps is None or (check.doubtful and not plain) else LEARN_CHECK
            if not check.unsure:  # it is in use
                check.patience = self._patience_in_use
            check.steps = (1 + self._price(check)) * (1 + learn * took[check] / expected * slower)
            check.doubtful = False

    def _price(self, check: _Check) -> float:
        return PRICE if check.steps is None else max(check.steps - 1, LEAST_PRICE)

    def _is_dear(self, check: _Check) -> bool:
        """Whether a check is known to cost more than is assumed of one."""
        return check.steps is not None and check.steps > 1 + PRICE


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
        self._tokens, self._spent, self._ahead = 0, 0.0, 0.0
        self._may_read: bool | None = None
        self._has_read = False
        self._account: RunTimes | None = None  # of the executable that this answer began with
        self.runs = np.zeros((2,), np.int32)

    @property
    def _furthest(self) -> int:
        return self._tokens

    @property
    def spoiled(self) -> bool:
        """See `Generation.spoiled`; an assistant has a cache, too."""
        draft = self._state["draft"]
        return super().spoiled or (bool(draft) and bool(ops.convert_to_numpy(draft.spoiled)))

    def _run(self, key: SpeculateKey, count: int) -> int:
        times = self._times(key)
        plan = times.plan()
        free = np.array([*(np.array(plan.free) * plan.price[0]), plan.gain])
        saved = free if self._saved is None else self._saved
        reads = bool(key.assistant) and not self._has_read  # the text, at the first check of an answer
        if self._account is None:  # an answer in the middle of which it could be asked would not pay for the reading
            self._account, self._may_read = times, plan.may_read
        tried = None if plan.wanting else plan.tried
        unread = reads and tried is not None  # what a check costs can be told without having read the text
        reads = reads and not unread
        alone = plan.wanting or (reads and not self._may_read)
        count = min(count, PLAIN_RUNS) if plan.wanting else count
        unmixed = 0 if alone else 1 if reads else plan.unmixed  # a reading is measured alone
        # A row that a stop string ended would go on guessing.
        stopped = [row in self._stopped for row in range(self.batch)]
        limits = np.array([self.step, count, unmixed, -1 if tried is None else tried, unread, *stopped], np.int32)
        can_pay = saved[:2] + (NEVER if alone or unread else 0)
        budget = np.array([*can_pay, saved[2], *plan.price, *plan.least], np.float32)
        inputs = map(backend.to_device, (limits, budget))
        waits, start = self._executables.compiles(key), time.perf_counter()
        weights = [*self.weights, *self._draft_weights]
        outputs = self._executables(key, self._state, self._request, *inputs, weights=weights)
        step, more, self._progress, told, left = outputs
        self.step, self._more = int(step), bool(more)
        self._tokens, *runs = ops.convert_to_numpy(told).tolist()
        seconds, reads = None if waits else time.perf_counter() - start, reads and sum(runs[1:]) > 0
        if reads:
            self._has_read = True
            times.read(seconds, *runs)
        times.took(None if reads else seconds, *runs)
        if key.assistant:
            self._spent += runs[0] + float(np.dot(runs[1:], 1 + plan.price)) + (times.reading if reads else 0.0)
            ahead = self._made() - self._spent
            if not waits:
                self._account.earn(ahead - self._ahead + SLACK * runs[0])
            self._ahead = ahead
        if not (alone or unread):  # guesses without having read say nothing of others
            self._saved = np.array(ops.convert_to_numpy(left))
            if tried is not None and runs[1 + tried]:
                self._saved[:2] = np.maximum(self._saved[:2], saved[:2])  # nobody pays for what tells a price
            if not waits:
                times.left(self._saved[:2] / plan.price[0], float(self._saved[2]))
        self.runs += (runs[0], sum(runs[1:]))
        return sum(runs)

    def _made(self) -> int:
        """How many steps without guesses would have brought all rows as far."""
        lengths, done = (ops.convert_to_numpy(each) for each in (self._progress.lengths, self._progress.done))
        return int(lengths.max() if done.all() else lengths[~done].min())

    def release(self):
        """See `Generation.release`; -1 stands where a row has no token yet."""
        progress = self._progress
        key, state, tokens = super().release()
        if progress is not None:
            run = self.prompt_end - 1 + ops.convert_to_numpy(progress.lengths)  # the newest token was not
            tokens = np.where(np.arange(tokens.shape[1]) < run[:, None], tokens, -1)
        return key, state, tokens
