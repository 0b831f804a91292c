"""What stands on disk of an executable comes back as it was, and what is damaged or foreign is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_xla.backend.executable_cache.packing import pack, structure_from_json, structure_to_json, unpack
from keras_xla.engine.search.sampling import Progress

leaves = st.none() | st.integers()
structures = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner, inner).map(lambda parts: Progress(*parts))
    ),
)


@given(structures)
def test_structures_come_back_with_their_types(structure):
    back = structure_from_json(structure_to_json(structure))
    assert back == structure and repr(back) == repr(structure)  # a named tuple equals a tuple


@pytest.mark.parametrize("wrong", [1.5, "x", {1: 2}, {3}, True, pytest])
def test_what_else_there_is_cannot_be_written(wrong):
    with pytest.raises(TypeError):
        structure_to_json([wrong])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"3.5", b'"x"', b'["set", []]', b'["os:system", [1]]', b'["keras_xla.nothing:There", []]']
)
def test_what_describes_no_structure_is_refused_and_runs_nothing(content):
    with pytest.raises(ValueError):
        structure_from_json(content)


def test_a_named_tuple_with_other_fields_is_refused():
    content = json.loads(structure_to_json(Progress(1, 2, 3)))
    content[1].append(4)
    with pytest.raises(ValueError):
        structure_from_json(json.dumps(content).encode())


@given(st.dictionaries(st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1), st.binary()))
def test_parts_come_back(parts):
    parts = {name.replace("/", "_").replace("\\", "_"): content for name, content in parts.items()}
    assert unpack(pack(parts)) == parts and pack(parts) == pack(dict(parts))


@pytest.mark.parametrize("damage", [b"", b"nothing", pack({"a": b"x" * 100})[:-30]])
def test_what_is_no_payload_has_no_parts(damage):
    assert unpack(damage) == {}
