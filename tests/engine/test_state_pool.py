"""The pool of states: whose they are, how many bytes of them stay, and that nothing waits for itself."""

import concurrent.futures
import gc
import linecache
import sys
import threading
import types
import weakref

import pytest

from keras_xla.engine.states import state_pool
from keras_xla.engine.states.state_pool import StatePool

LONG = 60  # seconds: nothing takes so long, unless a thread waits for itself


def in_a_thread(call, *args):
    """What a call returns that another thread makes, or the error that it raises."""
    made = concurrent.futures.Future()

    def run():
        try:
            made.set_result(call(*args))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # one that waits for itself does not keep the tests from ending
    return made.result(LONG)


class State:
    """As large as its key is."""

    def __init__(self, key):
        self.key, self.nbytes = key, key


class Owner:
    pass


def kept(key):
    return types.SimpleNamespace(key=key, state=State(key))


def test_a_state_is_one_callers_until_it_comes_back():
    pool = StatePool(State)
    first, second = pool.take(3), pool.take(3)
    assert first is not second and pool.nbytes == 0
    pool.give(3, first)
    assert pool.nbytes == 3 and pool.take(4) is not first and pool.take(3) is first


def test_of_too_many_idle_states_those_used_longest_ago_go():
    pool = StatePool(State, idle_bytes=10)
    states = [State(key) for key in (4, 5, 3)]
    for state in states:
        pool.give(state.key, state)
    assert pool.nbytes == 8
    assert pool.take(5) is states[1] and pool.take(3) is states[2] and pool.take(4) is not states[0]


def test_of_states_of_one_size_too_the_one_used_longest_ago_goes():
    pool = StatePool(State, idle_bytes=6)
    first, second, third = (State(3) for _ in range(3))
    for state in (first, second, third):
        pool.give(3, state)
    assert {pool.take(3), pool.take(3)} == {second, third}


def test_one_of_each_size_is_left_after_a_trim():
    pool = StatePool(State)
    for key in (3, 3, 3, 4):
        pool.give(key, State(key))
    pool.trim()
    assert pool.nbytes == 7


def test_what_is_kept_is_its_owners_alone():
    pool, one, other = StatePool(State), Owner(), Owner()
    mine = kept(3)
    pool.keep(one, mine)
    assert pool.take(3) is not mine.state and pool.take_kept(other) is None
    assert pool.take_kept(one) is mine and pool.take_kept(one) is None


def test_what_was_kept_before_for_the_same_owner_is_anybodys():
    pool, owner = StatePool(State), Owner()
    before, now = kept(3), kept(3)
    pool.keep(owner, before)
    pool.keep(owner, now)
    assert pool.take(3) is before.state and pool.take_kept(owner) is now


def test_of_too_many_kept_states_those_used_longest_ago_go_and_free_their_memory():
    pool, owners = StatePool(State, kept_bytes=10), [Owner() for _ in range(3)]
    each = [kept(5) for _ in owners]
    pool.keep(owners[0], each[0])
    pool.keep(owners[1], each[1])
    pool.keep(owners[0], pool.take_kept(owners[0]))  # used once more
    pool.keep(owners[2], each[2])
    gone = weakref.ref(each[1].state)
    owned = [pool.take_kept(owner) for owner in owners]
    assert owned == [each[0], None, each[2]]
    del each, owned
    gc.collect()
    assert gone() is None and pool.nbytes == 0


def test_the_latest_is_kept_however_large_it_is():
    pool, one, other = StatePool(State, kept_bytes=10), Owner(), Owner()
    pool.keep(one, kept(3))
    pool.keep(other, kept(50))
    assert pool.take_kept(one) is None and pool.take_kept(other).key == 50


def test_an_owner_that_is_gone_keeps_nothing():
    pool, owner = StatePool(State), Owner()
    gc.collect()
    one = kept(3)
    state = weakref.ref(one.state)
    pool.keep(owner, one)
    del one, owner
    gc.collect()
    assert state() is None


def test_a_state_whose_owner_is_gone_before_it_is_put_away_is_anybodys():
    """It comes back in the middle of a change, in which its owner goes."""

    class Returning(State):
        @property
        def nbytes(self):
            if owners:
                pool.keep(owners.pop(), one)
            return 1

        @nbytes.setter
        def nbytes(self, value):
            pass

    pool, owners, one = StatePool(State), [Owner()], kept(7)
    pool.give(2, Returning(2))
    assert pool.take(7) is one.state


def test_a_state_may_come_back_in_the_middle_of_everything():
    """As that of a stream does which Python's garbage collector finds."""

    class Returning(State):
        """While its bytes are counted, another state comes back."""

        @property
        def nbytes(self):
            if others:
                pool.give(*others.pop())
            return 1

        @nbytes.setter
        def nbytes(self, value):
            pass

    pool, others = StatePool(State), [(7, State(7))]
    in_a_thread(pool.give, 2, Returning(2))
    assert not others and not pool._changing
    assert pool.nbytes == 8


def test_a_change_that_is_cut_off_stops_no_later_one():
    """By Ctrl-C, in any line of a method."""

    class Interrupting(State):
        @property
        def nbytes(self):
            raise KeyboardInterrupt

        @nbytes.setter
        def nbytes(self, value):
            pass

    pool = StatePool(State)
    with pytest.raises(KeyboardInterrupt):
        pool.give(2, Interrupting(2))
    assert isinstance(pool.take(2), Interrupting)
    state = State(3)
    in_a_thread(pool.give, 3, state)
    assert not pool._changing and pool.take(3) is state


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C where an owner goes
def test_ctrl_c_in_any_line_leaves_a_pool_that_works():
    """A signal arrives before each line of the pool's own code once, whichever that is.

    The pool works afterwards, and for a later chat that is gone it keeps nothing.
    """
    lines = 0
    for at in range(500):
        pool, owner = StatePool(State, idle_bytes=5, kept_bytes=5), Owner()
        pool.give(3, State(3))
        if not interrupted(at, lambda pool=pool, owner=owner: use(pool, owner)):
            break
        lines += 1
        in_a_thread(use, pool, owner)
        assert pool.nbytes <= 5 and not pool._changing, at
        later, one = Owner(), kept(4)
        state = weakref.ref(one.state)
        pool.keep(later, one)
        assert None not in [each() for each in pool._kept], at
        del later, one
        assert state() is None, at
    assert 50 < lines < 499


def use(pool, owner):
    """Everything that one can do with a pool."""
    states = [pool.take(key) for key in (3, 4)]
    for state in states:
        pool.give(state.key, state)
    pool.keep(owner, kept(4))
    pool.keep(Owner(), kept(4))
    if (found := pool.take_kept(owner)) is not None:
        pool.give(found.key, found.state)
    pool.trim()
    return pool.nbytes


def interrupted(at, call):
    """Whether a call was ended by Ctrl-C before the pool's line number `at` of those that it runs.

    The lines of a `with` are no places for it: a tracer is called there between the block's end and the lock's release,
    where Python itself never looks for signals.
    """
    seen = 0

    def before_each_line(frame, event, argument):
        nonlocal seen
        if frame.f_code.co_filename != state_pool.__file__:
            return None
        if event == "line" and not linecache.getline(state_pool.__file__, frame.f_lineno).lstrip().startswith("with "):
            seen += 1
            if seen > at:
                raise KeyboardInterrupt
        return before_each_line

    earlier = sys.gettrace()
    sys.settrace(before_each_line)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(earlier)
    return False
