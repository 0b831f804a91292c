"""The folder of this process in which TensorFlow keeps executables: where it lies, and what stays of it."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

import keras
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("of the TensorFlow backend", allow_module_level=True)

from keras_xla.private.tensorflow import xla_folder

MEMORY = pathlib.Path("/dev/shm")


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A link to a folder on the disk of temporary files, beside which there is one in memory."""
    if not MEMORY.exists() or os.stat(MEMORY).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is one disk only")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    link = tmp_path / "link"
    link.symlink_to(xla_folder._new(str(tmp_path)), target_is_directory=True)
    yield link
    shutil.rmtree(link.resolve())


@pytest.mark.parametrize("free", [2**30, 2**25], ids=["much", "little"])
def test_it_moves_to_another_disk_and_back(link, tmp_path, monkeypatch, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=free))
    for parent in (MEMORY, tmp_path):
        before = link.resolve()
        assert xla_folder.move_folder(link)
        assert link.resolve().parent == parent and not before.exists()


def test_it_stays_where_no_other_disk_has_room(link, monkeypatch):
    before = link.resolve()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=2**20))
    assert not xla_folder.move_folder(link) and link.resolve() == before


KILLED = """
import os, signal, sys
from keras_xla.private.tensorflow import xla_folder
print(xla_folder._new(sys.argv[1]), flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


@pytest.mark.skipif(xla_folder.fcntl is None, reason="without locks nobody knows who lives")
def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(tmp_path):
    def start(how):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path, how], **pipes)
        return process, pathlib.Path(process.stdout.readline().strip())

    waiting, used = start("waits")
    killed, left = start("killed")
    killed.wait()
    (left / "of somebody.pb").write_bytes(b"executable")
    mine = xla_folder._new(str(tmp_path))
    xla_folder._remove_unused(str(tmp_path))
    assert not left.exists() and used.exists() and mine.exists()
    waiting.communicate()
