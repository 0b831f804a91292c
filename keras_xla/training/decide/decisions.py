"""What was measured, kept on disk so that the next run starts decided.

Each answer is a file of its own, named by what it holds for, and put in place whole: processes that write at the same
time lose nothing, and one that is killed leaves nothing half written. A disk that is full or read-only costs a warning.
"""

import contextlib
import hashlib
import json
import math
import pathlib
import time
import uuid
from dataclasses import asdict, dataclass, field

from keras_xla.cache_folder import cache_folder, let_go_of_the_oldest, write_whole
from keras_xla.troubleshooting import warn_once

FORMAT = 2
MOST_KEPT = 1000  # decisions on disk; the oldest ones go
SECONDS_FAILURES_COUNT = 24 * 3600  # for a failure may be due to what the key does not tell: a driver, a full disk
THIS_RUN = uuid.uuid4().hex
_warned: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class MeasurementKey:
    """What a measurement holds for."""

    graph: str  # the fingerprint of the traced step
    kind: str  # `"train"`, `"test"`, `"predict"` or `"function"`
    batch: str  # shapes and dtypes
    device: str  # names and numbers of processors
    versions: str  # of Keras and TensorFlow
    settings: str  # threads, flags of XLA and the like

    @property
    def digest(self) -> str:
        """Names its file."""
        return hashlib.sha256(json.dumps([FORMAT, asdict(self)], sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Times:
    """Seconds of a step, or of a call, in the plain graph and in another way."""

    graph: float
    way: str = ""  # `"xla"` or `"partial"`; empty if none was tried
    tried: float | None = None  # in that way; None if it was not tried, or failed
    compile: float = 0.0  # of the first step in that way, which compiles
    failed: str = ""  # why that way does not work; empty if it does
    trials: int = 1  # how often both were compared
    run: str = THIS_RUN  # names the run of Python that measured
    time: float = field(default_factory=time.time)  # when it did

    def __post_init__(self):
        numbers = (self.graph, self.compile, self.time, *(() if self.tried is None else (self.tried,)))
        texts = (self.way, self.failed, self.run)
        right = all(isinstance(x, (int, float)) and math.isfinite(x) and x >= 0 for x in numbers)
        if not (right and all(isinstance(x, str) for x in texts) and isinstance(self.trials, int)):
            raise ValueError(f"Times received {asdict(self)}; it expects texts and finite numbers from 0 on.")

    @property
    def source(self) -> str:
        """Who has measured, in words."""
        return "measured before in this run" if self.run == THIS_RUN else "measured in an earlier run"


@dataclass(frozen=True)
class Entry:
    """An entry of the disk."""

    name: str  # of what was run, such as `"sequential.train_step"`
    key: MeasurementKey
    times: Times
    chosen: str  # the faster way


class Decisions:
    """Measurements by key, on disk, in a folder that need not exist; in memory where the disk takes none."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._unwritten: dict[MeasurementKey, Times] = {}

    def get(self, key: MeasurementKey) -> Times | None:
        """What is known for this key. A failure of some time ago does not count."""
        if key in self._unwritten:
            return self._unwritten[key]
        known = self._read(self._path(key))
        if known is None or known.key != key:
            return None
        expired = known.times.failed and time.time() - known.times.time > SECONDS_FAILURES_COUNT
        return None if expired else known.times

    def put(self, key: MeasurementKey, times: Times, name: str, chosen: str) -> None:
        """Remember it; `name` and `chosen` are for people who look at the list."""
        entry = {"format": FORMAT, "name": name, "chosen": chosen, "key": asdict(key), "times": asdict(times)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(key), json.dumps(entry, indent=1))
            self._unwritten.pop(key, None)
            let_go_of_the_oldest(self.folder, ".json", MOST_KEPT, lambda _: 1)
        except OSError as error:
            self._unwritten[key] = times
            self._warn("write", f"keras_xla cannot remember in {self.folder} what it measures: {error}")

    def all(self) -> list[Entry]:
        """Everything, newest first."""
        found = [self._read(path) for path in self.folder.glob("*.json")]
        return sorted((known for known in found if known is not None), key=lambda known: -known.times.time)

    def clear(self) -> int:
        """Remove everything; how many decisions that were."""
        self._unwritten.clear()
        files = list(self.folder.glob("*.json"))
        for path in [*files, *self.folder.glob("*.new")]:
            path.unlink(missing_ok=True)
        return len(files)

    def _path(self, key: MeasurementKey) -> pathlib.Path:
        return self.folder / f"{key.digest}.json"

    def _read(self, path: pathlib.Path) -> Entry | None:
        try:
            entry = json.loads(path.read_text())
            if entry["format"] != FORMAT:
                return None
            return Entry(
                str(entry["name"]), MeasurementKey(**entry["key"]), Times(**entry["times"]), str(entry["chosen"])
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", f"keras_xla cannot read {path}, and measures again: {error}")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            self._warn("damaged", f"keras_xla drops {path}, which is damaged, and measures again: {error!r}")
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return None

    def _warn(self, what: str, message: str) -> None:
        warn_once(_warned, (what, str(self.folder)), message)


def decisions() -> Decisions:
    """The decisions of `jit_compile="auto"` on this machine."""
    return Decisions(cache_folder() / "decisions")
