"""A graph cut into plain and compiled parts, which run in turns."""

import hypothesis.strategies as st
from hypothesis import given

from keras_xla.backend.tensorflow.partial.cut import cut

MANY = 1000


def cut_all(needs, plain, work=None, light=(), least=1, most=MANY):
    return cut(needs, plain, needs if work is None else work, light, least, most)


@st.composite
def graphs(draw):
    """Operations, of which each needs some of those before it, and the plain ones among them."""
    size = draw(st.integers(1, 14))
    names = [f"op{i}" for i in range(size)]
    needs = {name: draw(st.sets(st.sampled_from(names[:i]))) if i else set() for i, name in enumerate(names)}
    return needs, draw(st.sets(st.sampled_from(names)))


@given(graphs(), st.integers(1, 4), st.integers(1, 4))
def test_nothing_runs_before_what_it_needs_and_plain_operations_are_never_compiled(graph, least, most):
    needs, plain = graph
    numbers = cut_all(needs, plain, least=least, most=most)
    assert set(numbers) == set(needs)
    assert all(numbers[needed] <= numbers[name] for name in needs for needed in needs[name])
    assert all(numbers[name] % 2 == 0 for name in plain)


@given(graphs(), st.integers(1, 4), st.integers(1, 4))
def test_no_more_compiled_parts_than_allowed_and_none_is_small(graph, least, most):
    needs, plain = graph
    numbers = cut_all(needs, plain, least=least, most=most)
    compiled = [number for number in numbers.values() if number % 2]
    assert len(set(compiled)) <= most
    assert all(compiled.count(number) >= least for number in compiled if plain)


@given(graphs())
def test_all_that_may_be_compiled_is_compiled_where_there_is_no_limit(graph):
    needs, plain = graph
    numbers = cut_all(needs, plain)
    assert all(numbers[name] % 2 for name in set(needs) - plain)


def test_without_plain_operations_there_is_one_part():
    needs = {"a": (), "b": ("a",), "c": ()}
    assert set(cut_all(needs, plain=()).values()) == set(cut_all(needs, plain=(), least=5).values()) == {1}


def test_a_training_step_with_a_tower():
    needs = {
        "scaled": (),
        "tower": ("scaled",),
        "head": ("tower",),
        "loss": ("head",),
        "head's gradient": ("head",),
        "tower's gradient": ("head's gradient", "tower"),
        "update": ("head's gradient", "tower's gradient"),
    }
    numbers = cut_all(needs, plain=("tower", "tower's gradient"))
    assert [numbers[name] for name in needs] == [1, 2, 3, 5, 3, 4, 5]


def test_a_compiled_part_too_small_for_a_call_runs_plainly_with_its_neighbours():
    needs = {"tower": (), "norm": ("tower",), "more": ("norm",), "head": ("more",), "loss": ("head",)}
    numbers = cut_all(needs, plain=("tower", "more"), least=2)
    assert [numbers[name] for name in needs] == [0, 0, 0, 1, 1]


def test_of_too_many_compiled_parts_the_smallest_run_plainly():
    needs = {"a": (), "A": ("a",), "b": ("A",), "B1": ("b",), "B2": ("B1",), "c": ("B2",), "C": ("c",), "D": ("C",)}
    numbers = cut_all(needs, plain=("a", "b", "c"), most=2)
    assert [numbers[name] for name in needs] == [0, 0, 0, 1, 1, 2, 3, 3]


def test_what_is_no_work_does_not_make_a_part_worth_its_call():
    needs = {"tower": (), "reshaped": ("tower",), "more": ("reshaped",)}
    numbers = cut_all(needs, plain=("tower", "more"), work=("tower", "more"))
    assert set(numbers.values()) == {0}


def test_light_operations_run_where_a_plain_one_uses_them():
    needs = {"kernel": (), "tower": ("kernel",), "decay": ("kernel",), "bias": (), "head": ("tower", "bias")}
    numbers = cut_all(needs, plain=("tower",), light=("kernel", "bias"))
    assert numbers["kernel"] == 0
    assert numbers["decay"] == numbers["bias"] == numbers["head"] == 1
