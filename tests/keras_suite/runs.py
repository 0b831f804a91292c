"""Runs Keras' tests in processes of their own: one for each backend, mode and group of folders."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
KERAS = pathlib.Path(importlib.util.find_spec("keras").origin).parent / "src"
LAYERS = "activations attention convolutional core merging normalization pooling regularization reshaping layer_test.py"
GROUPS = {
    "trainers": ("trainers",),
    "callbacks": ("callbacks",),
    "models": ("models", "saving"),
    "losses": ("losses", "metrics", "optimizers", "distribution"),
    "layers": tuple(f"layers/{name}" for name in LAYERS.split()),
    "rnn": ("layers/rnn",),
    "preprocessing": ("layers/preprocessing",),
}
LIMIT = 2400  # seconds that a process may take
_OF_OURS = ("KERAS_XLA_CACHE", "XLA_FLAGS", "TF_XLA_FLAGS")


@dataclass(frozen=True)
class Run:
    """One process.

    Attributes:
        backend: `"tensorflow"` or `"jax"`.
        mode: See `modes.MODES`.
        group: The name of its tests in `GROUPS`, or of a file for the results of `tests`.
        tests: Tests by name instead of the whole group.
    """

    backend: str
    mode: str
    group: str
    tests: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.backend} {self.mode} {self.group}"


@dataclass
class Results:
    """What became of tests: `outcomes[name]` is `"passed"`, `"failed"`, `"skipped"` or `"xfailed"`.

    Attributes:
        outcomes: By test.
        errors: What failed tests said, in a line or few.
        texts: The same with the traceback.
        counts: Of `modes.begin`.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)

    def add(self, other: "Results") -> None:
        """Take those of other tests in."""
        self.outcomes |= other.outcomes
        self.errors |= other.errors
        self.texts |= other.texts
        self.counts += other.counts

    def text(self, test: str) -> str:
        """All that a failed test said."""
        return f"{self.texts.get(test, '')}\n{self.errors.get(test, '')}"

    def passed(self) -> set[str]:
        """The names of the tests that passed."""
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


def run(job: Run, folder: pathlib.Path) -> Results:
    """Run it, or read what an earlier process has written; what plain Keras does is kept from one command to the next.

    Args:
        job: What to run.
        folder: For the report and the output of the process.
    """
    plain = job.mode.startswith("plain") and not job.tests
    folder = (ROOT / ".cache" / "keras_suite" / _key() if plain else folder) / f"{job.backend}-{job.mode}"
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"{job.group}.jsonl"
    if not plain:
        report.unlink(missing_ok=True)
    results = read(report)
    while "ended" not in results.counts:
        before = len(results.outcomes)
        code = _process(job, report)
        results = read(report)
        if "ended" not in results.counts:
            _note_death(report, code)
            results = read(report)
            if len(results.outcomes) == before:  # it does not even begin
                raise RuntimeError(f"{job} failed; see {report.with_suffix('.log')}")
    return results


def read(report: pathlib.Path) -> Results:
    """What the plugin has written so far."""
    results = Results()
    lines = report.read_text().splitlines() if report.exists() else []
    for line in map(json.loads, lines):
        if "over" in line and results.outcomes.get(line["over"]) != "failed":
            results.outcomes[line["over"]] = line["outcome"]
            results.errors[line["over"]], results.texts[line["over"]] = line["error"], line["text"]
        if "counts" in line:
            results.counts += Counter(line["counts"])
            results.counts["ended"] = 1
    return results


def _process(job: Run, report: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory() as empty, report.with_suffix(".log").open("a") as log:
        env = {name: value for name, value in os.environ.items() if name not in _OF_OURS}
        env |= {
            "KERAS_BACKEND": job.backend,
            "KERAS_SUITE_MODE": job.mode,
            "KERAS_SUITE_REPORT": str(report.absolute()),
            "KERAS_XLA_CACHE": f"{empty}/decisions",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
        }
        if job.backend == "jax":  # some tests want several devices
            env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(KERAS), "-p", "no:cacheprovider"]
        command += ["-p", "tests.keras_suite.plugin", "-o", "python_files=*_test.py", "-q", "-W", "ignore"]
        tests = [str(KERAS / test) for test in job.tests or GROUPS[job.group]]
        try:
            return subprocess.run(
                [*command, *tests], cwd=empty, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT
            ).returncode
        except subprocess.TimeoutExpired:
            return -1


def _note_death(report: pathlib.Path, code: int) -> None:
    begun = over = None
    for line in map(json.loads, report.read_text().splitlines() if report.exists() else []):
        begun, over = line.get("begun", begun), line.get("over", over)
    if begun is not None and begun != over:
        line = {"over": begun, "outcome": "failed", "error": f"the process ended with {code} in this test", "text": ""}
        with report.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _key() -> str:
    """Of all that what plain Keras does depends on."""
    versions = [
        f"{name}{_version(name)}"
        for name in ("keras", "tensorflow", "jax", "numpy", "grain", "pandas", "orbax-checkpoint")
    ]
    code = b"".join((HERE / name).read_bytes() for name in ("plugin.py", "modes.py"))
    return "-".join([*versions, hashlib.sha256(code).hexdigest()[:8]])


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-none"
