"""How many tokens one call of an executable makes: from the time that a token takes."""

from keras_xla.engine.runs.generation import FIRST_COUNT, Pace


def test_a_call_makes_as_many_as_fit_into_its_time():
    pace = Pace()
    pace.took(1.0, runs=10)
    assert pace.count() == 5 and pace.count(0.25) == 2


def test_a_call_makes_one_at_least():
    pace = Pace()
    pace.took(30.0, runs=2)
    assert pace.count() == pace.count(0.1) == 1


def test_before_a_time_is_known_a_call_makes_few_and_one_that_is_in_haste_makes_one():
    assert Pace().count() == FIRST_COUNT and Pace().count(0.1) == 1


def test_the_last_call_counts():
    pace = Pace()
    pace.took(10.0, runs=1)
    pace.took(0.5, runs=50)
    assert pace.count() == 50
