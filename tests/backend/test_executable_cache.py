"""Executables on disk: what is kept comes back whole or not at all, whoever writes, damages or fills the disk."""

import errno
import importlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import types
import warnings

import pytest

from keras_xla.backend.executable_cache import cache as module
from keras_xla.backend.executable_cache.cache import ExecutableCache, compile_cache, executable_cache
from keras_xla.cache_folder import cache_folder, write_whole


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(module, "_told", set())


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setattr(module, "_settings", module.CacheSettings())


@pytest.fixture
def cache(tmp_path):
    return ExecutableCache(tmp_path / "not yet" / "there", 10_000)


def files(cache, pattern="*"):
    return sorted(cache.folder.glob(pattern))


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 8])
def test_what_is_kept_comes_back(cache, payload):
    assert cache.get("a") is None
    cache.put("a", payload)
    assert cache.get("a") == payload and cache.get("b") is None
    cache.put("a", b"other")
    assert cache.get("a") == b"other"


@pytest.mark.parametrize("damage", ["cut", "longer", "a bit", "empty", "another program's"])
def test_what_is_damaged_is_dropped_and_said_once(cache, damage):
    cache.put("a", b"payload")
    (path,) = files(cache)
    content = path.read_bytes()
    damaged = {
        "cut": content[:-1],
        "longer": content + b"x",
        "a bit": content[:-1] + bytes([content[-1] ^ 1]),
        "empty": b"",
        "another program's": b"\x7fELF" + bytes(100),
    }
    path.write_bytes(damaged[damage])
    with pytest.warns(UserWarning, match="which is damaged, and compiles"):
        assert cache.get("a") is None
    assert not files(cache)
    path.write_bytes(damaged[damage])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get("a") is None
    cache.put("a", b"again")
    assert cache.get("a") == b"again"


def test_a_full_disk_costs_a_warning_and_leaves_nothing(cache, monkeypatch):
    cache.put("a", b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="cannot keep executables in .*No space left"):
        cache.put("b", b"new")
    assert [path.name for path in files(cache)] == ["a.xla"] and cache.get("a") == b"old"


def test_a_folder_that_may_not_be_written_costs_one_warning_for_all_executables(cache, monkeypatch):
    def denied(path, content):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(module, "write_whole", denied)
    with pytest.warns(UserWarning, match="cannot keep executables in .*Permission denied") as told:
        assert [cache.put(name, b"x") for name in "abc"] == [False] * 3
    assert len(told) == 1


def test_what_the_system_does_not_let_one_look_at_is_not_there(cache):
    cache.put("a", b"x")
    too_long = 300 * "a"  # for a file's name: an OSError, as is a folder that may not be entered, but for root
    with pytest.raises(OSError, match="too long"):
        (cache.folder / too_long).stat()
    assert cache.holds("a") and not cache.holds("b") and not cache.holds(too_long)


def test_a_folder_that_is_a_file_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    cache = ExecutableCache(tmp_path / "file", 1000)
    with pytest.warns(UserWarning, match="cannot keep executables"):
        cache.put("a", b"x")
    with pytest.warns(UserWarning, match="cannot read the executables"):
        assert cache.get("a") is None


def test_those_that_were_not_used_for_longest_go(cache):
    for i, name in enumerate("abcd"):
        cache.put(name, bytes(2000))
        os.utime(cache.folder / f"{name}.xla", (i, i))
    cache.get("a")  # used now
    cache.put("e", bytes(2000))
    assert [path.stem for path in files(cache)] == ["a", "c", "d", "e"]
    assert sum(path.stat().st_size for path in files(cache)) <= 10_000


def test_what_may_not_be_removed_stays_and_does_not_count(cache, monkeypatch):
    unlink = pathlib.Path.unlink

    def of_another_user(path, **options):
        if path.name == "a.xla":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        unlink(path, **options)

    monkeypatch.setattr(pathlib.Path, "unlink", of_another_user)
    for i, name in enumerate("abcdefg"):
        assert cache.put(name, bytes(2000))
        os.utime(cache.folder / f"{name}.xla", (i, i))
    assert [path.stem for path in files(cache)] == ["a", "d", "e", "f", "g"]


def test_what_is_larger_than_all_may_be_is_not_kept(cache):
    cache.put("a", b"x")
    cache.put("b", bytes(10_001))
    assert [path.stem for path in files(cache)] == ["a"]


def test_what_a_killed_writer_left_behind_goes_in_time(cache):
    cache.put("a", b"x")
    half = f"{'0f' * 16}.new"
    for name, age in ((f"old.xla.{half}", 4000), (f"of now.xla.{half}", 0), ("somebody's.new", 4000)):
        path = cache.folder / name
        path.write_bytes(b"half")
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    cache.put("b", b"y")
    assert sorted(path.name for path in files(cache, "*.new")) == [f"of now.xla.{half}", "somebody's.new"]


def _write_and_read(folder, number):
    cache = ExecutableCache(folder, 2_000)
    for i in range(200):
        cache.put(f"k{(i + number) % 4}", bytes([i % 4]) * 300)
        found = cache.get(f"k{i % 4}")
        assert found is None or (len(found) == 300 and len(set(found)) == 1)


def test_processes_that_write_at_the_same_time_read_whole_entries_only(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(_write_and_read, [(tmp_path, i) for i in range(2)])
    assert not list(tmp_path.glob("*.new"))


def test_the_folder_is_the_users_unless_another_is_named(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(importlib, "import_module", lambda _: types.SimpleNamespace(keep_executables=told.append))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_XLA_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("KERAS_XLA_CACHE", "mine")
    begun = pathlib.Path.cwd()
    monkeypatch.chdir(tmp_path)  # as a script does
    assert cache_folder() == begun / "mine"
    monkeypatch.setenv("KERAS_XLA_CACHE", str(tmp_path / "env"))
    assert executable_cache() is None  # off by default
    compile_cache()
    assert executable_cache().folder == tmp_path / "env" / "executables"
    settings = compile_cache(tmp_path / "own", max_bytes=5)
    assert (settings.folder, settings.max_bytes, settings.enabled) == (str(tmp_path / "own"), 5, True)
    assert executable_cache().folder == tmp_path / "own" and executable_cache().max_bytes == 5
    assert not compile_cache(enabled=False).enabled and executable_cache() is None
    assert [cache.folder.name for cache in told] == ["executables", "own"]
    with pytest.raises(ValueError, match="Received max_bytes=0; expected 1 or more"):
        compile_cache(max_bytes=0)
    with pytest.raises(TypeError, match="Received max_bytes='1GB' of type str; expected an int of bytes"):
        compile_cache(max_bytes="1GB")


def test_the_folder_stays_where_it_is_when_the_process_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib, "import_module", lambda _: types.SimpleNamespace(keep_executables=lambda cache: None)
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    compile_cache("here")
    monkeypatch.chdir(tmp_path / "other")
    executable_cache().put("a", b"x")
    assert [path.parent for path in tmp_path.rglob("*.xla")] == [tmp_path / "here"]
    assert compile_cache("~/mine").folder == str(tmp_path / "home" / "mine")


def test_where_it_cannot_be_turned_on_it_stays_off(monkeypatch):
    def refuse(cache):
        raise RuntimeError("too late")

    monkeypatch.setattr(importlib, "import_module", lambda _: types.SimpleNamespace(keep_executables=refuse))
    with pytest.raises(RuntimeError, match="too late"):
        compile_cache()
    assert executable_cache() is None


def test_a_file_that_is_put_in_place_whole_stays_where_a_link_points(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "there" / "file.json")
    for content in ("one", "two"):
        write_whole(tmp_path / "link.json", content)
        assert (tmp_path / "link.json").is_symlink() and (tmp_path / "there" / "file.json").read_text() == content
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file.json"]


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="a system without /dev/stdout")
@pytest.mark.parametrize("into", ["a pipe", "a file"])
def test_into_stdout_it_is_written(into, tmp_path):
    code = """
import pathlib
from keras_xla.cache_folder import write_whole
print("before", flush=True)
write_whole(pathlib.Path("/dev/stdout"), "report\\n")
print("after", flush=True)
"""
    command, root = [sys.executable, "-c", code], str(pathlib.Path(__file__).parents[2])
    if into == "a pipe":
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=root).stdout
    else:
        with (tmp_path / "log.txt").open("a") as file:
            subprocess.run(command, stdout=file, check=True, cwd=root)
        said = (tmp_path / "log.txt").read_text()
    assert said == "before\nreport\nafter\n"
