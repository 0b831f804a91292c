"""The compile log: what it lists, and what it is asked for by mistake."""

import pytest

import keras_xla
from keras_xla.backend.compile_log import EVENT_KINDS, record


def test_a_kind_lists_its_own_events_in_their_order():
    before = len(keras_xla.compile_log("function"))
    made = [record("f", kind, "x: (1,)", "first call", 0.5) for kind in (*EVENT_KINDS, "function")]
    assert keras_xla.compile_log("function")[before:] == [made[EVENT_KINDS.index("function")], made[-1]]
    assert keras_xla.compile_log()[-len(made) :] == made
    assert str(keras_xla.CompileLog(made[:2])).endswith("1.00 s  in 2 XLA compilations")
    assert str(keras_xla.CompileLog(made[:1])).endswith("0.50 s  in 1 XLA compilation")


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="kind='jit'; expected one of train, test, predict, generate, function"):
        keras_xla.compile_log("jit")
