"""Everything a prompt may be gives the same rows; everything else gives an error that says what to do."""

import types
from collections.abc import Sequence

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_xla.generation.text import prompts

ROWS = [[5, 6, 7], [8], [9, 5]]


def plain(rows):
    return [row.tolist() for row in rows]


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=5), st.data())
def test_any_padding_gives_back_the_rows(rows, data):
    width = max(map(len, rows)) + data.draw(st.integers(0, 3))
    ids, mask = np.full((len(rows), width), 7), np.zeros((len(rows), width), "int64")
    for i, row in enumerate(rows):
        start = data.draw(st.integers(0, width - len(row)))
        ids[i, start : start + len(row)], mask[i, start : start + len(row)] = row, 1
    assert plain(prompts.rows({"input_ids": ids, "attention_mask": mask})) == rows
    assert plain(prompts.rows({"input_ids": ids.astype("int32"), "attention_mask": mask.astype(bool)})) == rows
    assert plain(prompts.rows({"input_ids": keras.ops.convert_to_tensor(ids), "attention_mask": mask})) == rows


def test_ragged_lists_need_no_padding():
    assert plain(prompts.rows(ROWS)) == ROWS
    assert plain(prompts.rows([np.array(row) for row in ROWS])) == ROWS


def test_without_a_mask_pad_tokens_at_either_end_are_padding_and_inside_they_are_tokens():
    ids = np.array([[0, 0, 5, 0, 6], [7, 8, 0, 0, 0]])
    assert plain(prompts.rows(ids, pad=0)) == [[5, 0, 6], [7, 8]]
    assert plain(prompts.rows(ids)) == ids.tolist()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow has ragged tensors")
def test_a_ragged_tensor_gives_its_rows():
    import tensorflow as tf

    assert plain(prompts.rows(tf.ragged.constant(ROWS))) == ROWS


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ([], ValueError, "no prompts"),
        (np.zeros((0, 4), int), ValueError, "at least one prompt"),
        (np.zeros((2, 0), int), ValueError, "at least one prompt and one token"),
        (np.zeros((4,), int), ValueError, "pass ids[None]"),
        (np.zeros((1, 2, 3), int), ValueError, "(1, 2, 3)"),
        ([1, 2, 3], ValueError, "pass [ids]"),
        (np.ones((1, 3)), TypeError, "dtype float64"),
        ([[1.5, 2.0]], TypeError, "expected ints"),
        (np.array([[2**40]]), ValueError, "fit into int32"),
        ({"ids": [[1]]}, ValueError, "expected 'input_ids'"),
        ({"input_ids": np.ones((1, 2), int), "attention_mask": np.ones((1, 2))}, TypeError, "mask of dtype float64"),
        ({"input_ids": np.ones((1, 2), int), "attention_mask": np.full((1, 2), 2)}, ValueError, "expected 0 and 1"),
        ({"input_ids": np.ones((1, 2), int), "attention_mask": np.ones((2, 1), int)}, ValueError, "of shape (2, 1)"),
        ({"input_ids": [[1], [2]], "attention_mask": [[1]]}, ValueError, "1 attention masks for 2 prompts"),
        ({"input_ids": [[1, 2]], "token_type_ids": [[0, 1]]}, ValueError, "token_type_ids beside 0"),
        ({"input_ids": [[1], [2, 3]], "token_type_ids": [[0], [0, 1]]}, ValueError, "token_type_ids beside 0"),
        ([[2**32 + 5]], ValueError, "the token id 4294967301; expected ids that fit into int32"),
        (np.array([[1, -(2**40)]]), ValueError, "the token id -1099511627776"),
    ],
)
def test_bad_ids_are_refused(inputs, error, text):
    with pytest.raises(error) as caught:
        prompts.rows(inputs)
    assert text in str(caught.value)


CHAT = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("Hi", ["Hi"]),
        (["Hi", "Ho"], ["Hi", "Ho"]),
        (("Hi", "Ho"), ["Hi", "Ho"]),
        (np.array(["Hi", "Ho"]), ["Hi", "Ho"]),
        (np.array([[b"Hi"], [b"Ho"]], object), ["Hi", "Ho"]),
        (CHAT, [CHAT]),
        ([CHAT, CHAT], [CHAT, CHAT]),
    ],
)
def test_texts(inputs, expected):
    assert prompts.is_text(inputs)
    assert prompts.texts(inputs) == expected


@pytest.mark.parametrize("inputs", [[[1, 2]], np.ones((1, 2), int), {"input_ids": [[1]]}, []])
def test_ids_are_no_text(inputs):
    assert not prompts.is_text(inputs)


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ("", ValueError, "Prompt 0 is empty"),
        (["a", ""], ValueError, "Prompt 1 is empty"),
        (["a", 3], TypeError, "Prompt 1 is a int; expected a string"),
        (np.array([], "U1"), ValueError, "no prompts"),
        (np.array([["a", "b"]]), ValueError, "expected (batch,)"),
        ([{"role": "user"}], ValueError, "expected 'role' and 'content'"),
    ],
)
def test_bad_texts_are_refused(inputs, error, text):
    with pytest.raises(error) as caught:
        prompts.texts(inputs)
    assert text in str(caught.value)


def test_an_error_calls_texts_by_their_kind():
    with pytest.raises(ValueError, match=r"^Answer 1 is empty"):
        prompts.texts(["a", ""], "Answer")


def test_a_column_of_lists_gives_its_rows():
    column = np.empty((3,), object)
    column[:] = ROWS
    assert not prompts.is_text(column) and plain(prompts.rows(column)) == ROWS
    assert prompts.is_text(np.array(["a", b"b"], object)) and prompts.is_text(np.array([], object))
    chats = np.empty((2,), object)
    chats[:] = [[{"role": "user", "content": "a"}]] * 2
    assert prompts.is_text(chats) and prompts.texts(chats) == chats.tolist()
    with pytest.raises(TypeError, match="dtype object"):
        prompts.rows(np.array([[5, 6], [7, 8]], object))


class Column(Sequence):
    """As a dataset of Hugging Face gives: neither a list nor an array."""

    def __init__(self, values):
        self._values = values

    def __getitem__(self, i):
        return self._values[i]

    def __len__(self):
        return len(self._values)


def test_columns_of_tables_are_lists():
    series = type("Series", (), dict(__module__="pandas.core.series", to_list=lambda self: None))()  # it is an array
    for column, expected in (
        (Column(["a", "b"]), ["a", "b"]),
        (Column(ROWS), ROWS),
        (types.SimpleNamespace(to_pylist=lambda: ["a"]), ["a"]),  # of pyarrow
        (types.SimpleNamespace(to_list=lambda: ["a"], __array__=None, dtype="String"), ["a"]),  # of polars
    ):
        assert prompts.as_list(column) == expected
    for other in (series, ROWS, np.ones(3), "text", None, {"input_ids": ROWS}, keras.ops.ones((2, 3), "int32")):
        assert prompts.as_list(other) is other


def test_kinds_of_tokens_that_are_all_alike_change_nothing():
    for kinds in ([[0, 0], [0]], None):
        assert plain(prompts.rows({"input_ids": [[1, 2], [3]], "token_type_ids": kinds})) == [[1, 2], [3]]
    assert plain(prompts.rows({"input_ids": np.ones((1, 2), int), "token_type_ids": np.zeros((1, 2))})) == [[1, 1]]


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ValueError, match=r"Prompt 1 is no UTF-8 text: .*Decode it"):
        prompts.texts([b"a", b"\xff"])


def test_decoder_rows_begin_with_the_start_token_once():
    assert plain(prompts.decoder_rows([[4], [2, 4], []], start=2)) == [[2, 4], [2, 4], [2]]
