"""Executables in several threads: one key compiles once, different ones at the same time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from keras import ops

from keras_xla import RecompileError
from keras_xla.engine.executables import Executables

LONG = 60  # seconds: nothing takes so long, unless threads wait for each other


@dataclass(frozen=True)
class Key:
    size: int


class Gate:
    """A function to compile for each key, `x + size`; the compilation of some keys waits until they may go on."""

    def __init__(self, *held):
        self.begun, self.may_go_on = ({key: threading.Event() for key in held} for _ in range(2))
        self.built = []

    def build(self, key):
        self.built.append(key)
        if key in self.begun:
            self.begun[key].set()
            assert self.may_go_on[key].wait(LONG)
        return (lambda x: x + key.size), None


def call(executables, key):
    return float(ops.convert_to_numpy(executables(key, ops.convert_to_tensor(np.float32(1)))))


def settle(count):
    """Wait until so many threads compile, or wait for one that does."""
    until = time.monotonic() + LONG
    while sum(thread.name == "compile gate" for thread in threading.enumerate()) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.05)  # a thread that is there may not wait yet


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_another_key_compiles_while_one_does(threads, new_events):
    gate = Gate(Key(1))
    executables = Executables("gate", gate.build, [])
    slow = threads.submit(call, executables, Key(1))
    assert gate.begun[Key(1)].wait(LONG)
    assert executables.compiles(Key(1)) and executables.compiles(Key(2))
    assert call(executables, Key(2)) == 3 and not executables.compiles(Key(2))
    gate.may_go_on[Key(1)].set()
    assert slow.result(LONG) == 2
    assert executables.keys == [Key(2), Key(1)] and executables.trace_count == 2
    shown = [(event.shapes, event.cause) for event in new_events("generate")]
    assert shown == [("Key(size=2)", "size 1 -> 2"), ("Key(size=1)", "first call")]
    slow, quick = (event.seconds for event in reversed(new_events("generate")))
    assert min(slow, quick) > 0


def test_keys_that_wait_for_each_other_all_compile(threads):
    meeting = threading.Barrier(4)

    def build(key):
        meeting.wait(LONG)
        return (lambda x: x + key.size), None

    executables = Executables("gate", build, [])
    made = [threads.submit(call, executables, Key(size)) for size in range(4)]
    assert [each.result(LONG) for each in made] == [1, 2, 3, 4]
    assert executables.trace_count == 4


def test_one_key_compiles_once_for_all_who_ask(threads, new_events):
    gate = Gate(Key(1))
    executables = Executables("gate", gate.build, [])
    made = [threads.submit(call, executables, Key(1)) for _ in range(4)]
    settle(4)
    gate.may_go_on[Key(1)].set()
    assert [each.result(LONG) for each in made] == [2] * 4
    assert gate.built == [Key(1)] and executables.trace_count == 1 and len(new_events("generate")) == 1


def test_models_are_traced_one_at_a_time(threads):
    """Those of a user may write down what they compute."""
    meeting, tracing, most = threading.Barrier(3), [], []

    def build(key):
        def function(x):
            tracing.append(key)
            time.sleep(0.05)
            most.append(len(tracing))
            tracing.remove(key)
            return x + key.size

        meeting.wait(LONG)
        return function, None

    executables = Executables("gate", build, [])
    for each in [threads.submit(call, executables, Key(size)) for size in range(3)]:
        each.result(LONG)
    assert most == [1, 1, 1]


def test_after_an_error_whoever_waits_tries(threads, new_events):
    gate, left = Gate(Key(1)), ["an error"]

    def build(key):
        function, names = gate.build(key)
        if left:
            raise MemoryError(left.pop())
        return function, names

    executables = Executables("gate", build, [])
    first = threads.submit(call, executables, Key(1))
    assert gate.begun[Key(1)].wait(LONG)
    second = threads.submit(call, executables, Key(1))
    settle(2)
    gate.may_go_on[Key(1)].set()
    with pytest.raises(MemoryError, match="an error"):
        first.result(LONG)
    assert second.result(LONG) == call(executables, Key(1)) == 2
    assert len(gate.built) == 2 and executables.trace_count == len(new_events("generate")) == 1


@pytest.mark.parametrize(("error", "refused"), [(MemoryError("full"), []), (ValueError("damaged"), [Key(1)])])
def test_what_was_read_is_not_refused_for_a_lack_of_memory(error, refused, monkeypatch):
    executables, errors, told = Executables("gate", Gate().build, []), [error], []

    def run(state, x, weights):
        if errors:
            raise errors.pop()
        return x + 1

    monkeypatch.setattr(executables.kept, "read", lambda key, names: run)
    monkeypatch.setattr(executables.kept, "refuse", told.append)
    with pytest.raises(type(error), match=str(error)):
        call(executables, Key(1))
    assert told == refused and call(executables, Key(1)) == 2 and executables.trace_count == 0


def test_where_recompiling_is_an_error_what_is_kept_and_cannot_be_read_is_one(monkeypatch):
    gate = Gate()
    executables = Executables("gate", gate.build, [], on_recompile="raise")
    call(executables, Key(1))
    monkeypatch.setattr(executables.kept, "holds", lambda key: True)  # by its name, but it is not whole
    for _ in range(2):
        with pytest.raises(RecompileError, match="size 1 -> 2"):
            call(executables, Key(2))
    assert executables.keys == [Key(1)] and executables.trace_count == 1


def test_an_error_in_a_trace_lets_others_trace():
    executables = Executables("gate", lambda key: ((lambda x: 1 // key.size), None), [])
    with pytest.raises(ZeroDivisionError):
        call(executables, Key(0))
    assert executables.keys == []
    executables = Executables("gate", lambda key: ((lambda x: x / key.size), None), [])
    assert call(executables, Key(2)) == 0.5


def test_what_is_being_compiled_counts_where_recompiling_is_an_error(threads):
    gate = Gate(Key(1), Key(2))
    executables = Executables("gate", gate.build, [], on_recompile="raise")

    def warm(key):
        with executables.warming():
            return call(executables, key)

    made = [threads.submit(call, executables, Key(1))]
    assert gate.begun[Key(1)].wait(LONG)
    with pytest.raises(RecompileError, match="size 1 -> 2"):
        call(executables, Key(2))
    made += [threads.submit(call, executables, Key(1)), threads.submit(warm, Key(2))]
    assert gate.begun[Key(2)].wait(LONG)
    made += [threads.submit(call, executables, Key(2))]  # served by the warm-up beside it
    settle(4)
    gate.may_go_on[Key(1)].set()
    gate.may_go_on[Key(2)].set()
    assert [each.result(LONG) for each in made] == [2, 2, 3, 3]
    assert gate.built == [Key(1), Key(2)]
