"""The pool of states: whose they are, how many bytes of them stay, and that nothing waits for itself."""

import gc
import threading
import types
import weakref

import pytest

from keras_xla.engine.states.state_pool import StatePool

LONG = 60  # seconds: nothing takes so long, unless a thread waits for itself


class State:
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
    thread = threading.Thread(target=lambda: pool.give(2, Returning(2)), daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive() and not others
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
    thread = threading.Thread(target=lambda: pool.give(3, state), daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive() and pool.take(3) is state
