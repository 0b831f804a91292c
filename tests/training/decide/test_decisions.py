"""What was measured, on disk: one file an answer, that several processes may write, lose or damage."""

import dataclasses
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings

import pytest

from keras_xla.cache_folder import cache_folder
from keras_xla.training.decide import decisions as store
from keras_xla.training.decide.decisions import Decisions, MeasurementKey, Times

pytestmark = pytest.mark.quick_on_jax  # a file is the same on both

KEY = MeasurementKey("f00d", "train", "x: (8, 4) float32", "2 cores of a CPU", "keras 3", "threads=(0, 0)")
TIMES = Times(0.01, "xla", 0.004, 1.5)


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_warned", set())
    return Decisions(tmp_path / "decisions")


def put(memory, key=KEY, times=TIMES):
    memory.put(key, times, "model.train_step", "xla")


def test_another_process_finds_what_was_put(memory):
    put(memory)
    code = f"""
        import pathlib
        from keras_xla.training.decide.decisions import *
        print(Decisions(pathlib.Path({str(memory.folder)!r})).get(MeasurementKey(**{dataclasses.asdict(KEY)!r})).tried)
    """
    made = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert made.stdout == "0.004\n"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(MeasurementKey)])
def test_whatever_changes_in_the_key_is_another_entry(memory, name):
    put(memory)
    assert memory.get(KEY) == TIMES
    assert memory.get(dataclasses.replace(KEY, **{name: "another"})) is None


def _put_many(folder, first):
    for number in range(first, first + 25):
        put(Decisions(folder), dataclasses.replace(KEY, graph=str(number)))


def test_writers_in_several_processes_lose_nothing(memory):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_many, args=(memory.folder, 25 * i)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {known.key.graph for known in memory.all()} == {str(number) for number in range(100)}


def test_a_writer_that_is_killed_leaves_nothing_broken(memory):
    put(memory)
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        writer = context.Process(target=lambda: [put(memory) for _ in range(100_000)])
        writer.start()
        time.sleep(0.05)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert memory.get(KEY).tried == TIMES.tried


def test_what_a_killed_writer_left_is_swept_up(memory):
    put(memory)
    left = memory.folder / f"half.json.{'0f' * 16}.new"
    left.write_text("{")
    put(memory)
    assert left.exists()  # its writer may be at work
    os.utime(left, (0, 0))
    put(memory)
    assert not left.exists()


GOOD = {"name": "m", "chosen": "xla", "key": dataclasses.asdict(KEY), "times": dataclasses.asdict(TIMES)}


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "\x00" * 40,
        json.dumps({"format": store.FORMAT}),
        json.dumps({"format": store.FORMAT, **GOOD, "times": {"graph": "fast"}}),
        json.dumps({"format": store.FORMAT, **GOOD, "times": {"graph": -1.0}}),
        json.dumps({"format": store.FORMAT, **GOOD, "times": {"graph": float("nan")}}),
        json.dumps({"format": store.FORMAT, **GOOD, "times": None}),
        json.dumps({"format": store.FORMAT, **GOOD, "times": {"graph": 10**400}}),
        "[" * 10**5,
    ],
)
def test_a_damaged_entry_is_dropped_and_said_once(memory, damage):
    others = [dataclasses.replace(KEY, graph=name) for name in ("a", "b")]
    for key in (KEY, *others):
        put(memory, key)
    for key in (KEY, others[0]):
        (memory.folder / f"{key.digest}.json").write_text(damage)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert memory.get(KEY) is None and memory.get(others[0]) is None
        assert memory.get(others[1]) == TIMES
    (warning,) = said
    assert "is damaged, and measures again" in str(warning.message)
    put(memory)
    assert memory.get(KEY) == TIMES


def test_bytes_that_are_no_text(memory):
    put(memory)
    (memory.folder / f"{KEY.digest}.json").write_bytes(b"\xff\xfe\x00")
    with pytest.warns(UserWarning, match="is damaged"):
        assert memory.get(KEY) is None


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path, memory):
    (tmp_path / "file").touch()
    below = Decisions(tmp_path / "file" / "below")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            put(below)
            assert below.get(KEY) == TIMES  # for as long as this run goes on
            assert below.all() == [] and Decisions(below.folder).get(KEY) is None
    assert ["cannot remember" in str(each.message) for each in said].count(True) == 1 and len(said) <= 2


def test_a_full_disk_costs_one_warning_and_leaves_no_half_file(memory, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    put(memory)
    monkeypatch.setattr(os, "replace", full)
    newer = dataclasses.replace(TIMES, tried=0.002)
    with pytest.warns(UserWarning, match="No space left on device"):
        put(memory, times=newer)
    assert memory.get(KEY) == newer and Decisions(memory.folder).get(KEY) == TIMES
    assert [path.suffix for path in memory.folder.iterdir()] == [".json"]


def test_only_the_newest_are_kept(memory, monkeypatch):
    monkeypatch.setattr(store, "MOST_KEPT", 3)
    keys = [dataclasses.replace(KEY, graph=str(number)) for number in range(5)]
    for number, key in enumerate(keys):
        put(memory, key)
        os.utime(memory.folder / f"{key.digest}.json", (number, number))
    put(memory)
    assert {known.key.graph for known in memory.all()} == {"3", "4", KEY.graph}


def test_a_failure_counts_for_a_day(memory):
    failed = Times(0.01, "xla", failed="no kernel")
    put(memory, times=failed)
    assert memory.get(KEY) == failed
    put(memory, times=dataclasses.replace(failed, time=time.time() - store.SECONDS_FAILURES_COUNT - 1))
    assert memory.get(KEY) is None


def test_who_measured_is_told():
    assert TIMES.source == "measured before in this run"
    assert dataclasses.replace(TIMES, run="another").source == "measured in an earlier run"


def test_clear_removes_all(memory):
    put(memory)
    assert memory.clear() == 1
    assert memory.all() == [] and memory.clear() == 0


def test_the_folder_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_XLA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "keras_xla"
    monkeypatch.setenv("KERAS_XLA_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


@pytest.mark.parametrize("name", ["KERAS_XLA_CACHE", "XDG_CACHE_HOME"])
def test_a_relative_folder_stays_where_it_is_when_the_script_goes_elsewhere(monkeypatch, tmp_path, name):
    monkeypatch.delenv("KERAS_XLA_CACHE", raising=False)
    monkeypatch.setenv(name, "cache")
    before = cache_folder()
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == before and before.is_absolute()


def test_a_home_that_there_is_not_is_no_error(monkeypatch):
    monkeypatch.setenv("KERAS_XLA_CACHE", "~nobody_of_that_name/cache")
    assert cache_folder().parts[-2:] == ("~nobody_of_that_name", "cache")


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """A user without a home, and where the system keeps temporary files."""
    for name in ("KERAS_XLA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(store.pathlib.Path, "home", home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_user_without_a_home(homeless):
    assert cache_folder() == homeless / f"keras_xla_{os.getuid()}"
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["open to others", "link", "file", "another user's"])
def test_a_folder_that_others_may_write_into_is_not_read(homeless, monkeypatch, kind):
    folder, elsewhere = homeless / f"keras_xla_{os.getuid()}", homeless / "elsewhere"
    elsewhere.mkdir()
    if kind == "link":
        folder.symlink_to(elsewhere)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777 if kind == "open to others" else 0o700)
    if kind == "another user's":
        there = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: there + 1)
        folder.rename(homeless / f"keras_xla_{there + 1}")
    with pytest.warns(UserWarning, match="belongs to another user, or others may write into it"):
        made = cache_folder()
    assert made.parent == homeless and made not in (folder, elsewhere) and made.is_dir()
    assert cache_folder() == made  # for as long as the process lives
