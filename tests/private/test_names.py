"""A private name that is gone: one warning, and whatever needs it is off."""

import types
import warnings

import pytest

from keras_xla.private import names
from keras_xla.private.names import Gone, Name, otherwise

NAME = Name("keras.Layer", "_no_such_thing", "nothing", "nothing is lost", "Keras 0", ("x",))


@pytest.fixture(autouse=True)
def _nobody_was_told(monkeypatch):
    monkeypatch.setattr(names, "_TOLD", set())


def having(method):
    return types.SimpleNamespace(_no_such_thing=method)


def test_what_is_there_is_given():
    assert NAME.of(having(lambda x, y=0: x))(x=3) == 3


@pytest.mark.parametrize("owner", [object(), having(lambda y: y)], ids=["gone", "takes another keyword"])
def test_what_is_gone_warns_once_and_is_an_error_that_names_it(owner):
    what = r"has no keras.Layer._no_such_thing\(x\), as Keras 0 have it.*nothing is lost"
    with pytest.warns(UserWarning, match=what), pytest.raises(Gone, match="_no_such_thing"):
        NAME.of(owner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Gone):
            NAME.of(owner)


@pytest.mark.filterwarnings("ignore:keras_xla")
def test_a_question_that_needs_it_has_an_answer_without():
    @otherwise("no")
    def ask(owner):
        return NAME.of(owner)(x="yes")

    assert ask(having(lambda x: x)) == "yes"
    assert ask(object()) == "no"


def test_other_errors_come_through():
    @otherwise("no")
    def ask():
        raise AttributeError("the user's own")

    with pytest.raises(AttributeError, match="own"):
        ask()
