"""A `tf.data.Dataset` of prompts is one list of them, whatever its elements look like."""

import numpy as np
import pytest
import tensorflow as tf

from keras_xla import XLAGenerationLayer
from keras_xla.generation.text import prompts
from keras_xla.generation.text.datasets import has_prompts, listed
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.tokenizers import tiny

TEXTS = ["a", "bc", "def", "b", "ca"]
ROWS = [[5, 6, 7], [8], [9, 10]]
slices = tf.data.Dataset.from_tensor_slices
ragged = tf.ragged.constant(ROWS)


def texts(made):
    return [each.decode() for each in made]


@pytest.mark.parametrize(
    "dataset",
    [
        slices(TEXTS),
        slices(TEXTS).batch(2),
        slices([[text] for text in TEXTS]).batch(2),
        slices((TEXTS, [0, 1, 0, 1, 0])),
        slices((TEXTS, [0, 1, 0, 1, 0])).batch(3),
        slices({"text": TEXTS, "label": [0, 1, 0, 1, 0]}),
        slices(({"text": TEXTS}, [0, 1, 0, 1, 0])).batch(2),
    ],
    ids=["strings", "batches", "columns", "pairs", "batches of pairs", "dicts", "pairs of a dict"],
)
def test_texts_come_in_the_order_of_the_dataset(dataset):
    assert texts(listed(dataset)) == TEXTS


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.from_generator(lambda: ROWS, output_signature=tf.TensorSpec((None,), tf.int64)),
        slices(ragged),
        slices(ragged).batch(2),
        slices((ragged, [0, 1, 0])).ragged_batch(2),
        slices({"input_ids": ragged.to_tensor(), "attention_mask": [[1, 1, 1], [1, 0, 0], [1, 1, 0]]}).batch(2),
        slices({"input_ids": ragged, "attention_mask": tf.ones_like(ragged)}).ragged_batch(2),
    ],
    ids=["vectors", "ragged", "ragged batches", "pairs", "ids and masks", "ragged ids and masks"],
)
def test_ids_lose_their_padding_only_by_a_mask(dataset):
    assert [row.tolist() for row in prompts.rows(listed(dataset))] == ROWS


def test_padded_ids_are_stripped_by_the_layer(layer):
    padded = slices(ragged.to_tensor()).batch(2)
    assert layer.generate(padded)["sequences"].tolist() == layer.generate(ROWS)["sequences"].tolist()


def test_with_a_mask_the_padding_token_may_be_one_of_the_text(layer):
    rows = {"input_ids": [[0, 5, 6], [7, 0, 0]], "attention_mask": [[1, 1, 1], [1, 1, 0]]}
    assert [each.tokens.tolist() for each in layer.score(slices(rows).batch(1))] == [[5, 6], [0]]
    made = layer.generate(slices(rows))["sequences"].tolist()
    assert made == [layer.generate({k: v[i : i + 1] for k, v in rows.items()})["sequences"][0].tolist() for i in (0, 1)]


@pytest.fixture(scope="module")
def layer(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    sizes = dict(batch_buckets=(4,), cache_buckets=(32,))
    return XLAGenerationLayer(model, tiny(), max_new_tokens=4, generation_config={}, pad_token_id=0, **sizes)


def test_the_layer_answers_a_dataset_as_a_list(layer):
    dataset = slices((TEXTS, [0, 1, 0, 1, 0])).batch(2)
    answers = layer.generate(TEXTS, verbose=0)
    assert layer.generate(dataset, verbose=0) == answers
    assert layer.generate(dataset, verbose=0, on_error="skip") == answers
    pieces = {}
    for row, piece in layer.stream(dataset):
        pieces[row] = pieces.get(row, "") + piece
    assert [pieces.get(row, "") for row in range(len(TEXTS))] == answers
    assert [each.tokens.tolist() for each in layer.score(dataset)] == [
        each.tokens.tolist() for each in layer.score(TEXTS)
    ]


def test_what_is_no_list_of_prompts_is_refused(layer):
    with pytest.raises(ValueError, match=r"never ends.*dataset.take"):
        layer.generate(slices(TEXTS).repeat())
    with pytest.raises(ValueError, match="no prompts"):
        layer.generate(slices(TEXTS).take(0))
    with pytest.raises(ValueError, match=r"\['de', 'en'\], of which 2 are strings.*dataset.map"):
        layer.generate(slices({"en": TEXTS, "de": TEXTS}))
    with pytest.raises(ValueError, match="Prompt 1 is empty"):
        layer.generate(slices(["a", ""]))
    with pytest.raises(ValueError, match=r"Received ids of shape \(\)"):
        layer.generate(slices([5, 6]))


def test_a_dataset_that_can_be_read_once_is_scored_with_answers(layer):
    read = iter(["a", "b"])
    dataset = tf.data.Dataset.from_generator(lambda: read, output_signature=tf.TensorSpec((), tf.string))
    made = layer.score(dataset, [" c", "d"])
    assert [each.tokens.tolist() for each in made] == [
        each.tokens.tolist() for each in layer.score(["a", "b"], [" c", "d"])
    ]


def test_an_empty_prompt_of_ids_costs_no_other_its_answer(layer):
    rows = [[5, 6], [], [7]]
    dataset = tf.data.Dataset.from_generator(lambda: rows, output_signature=tf.TensorSpec((None,), tf.int64))
    with pytest.raises(ValueError, match="Prompt 1 is empty"):
        layer.generate(dataset)
    made = []
    for inputs in (rows, dataset):
        with pytest.warns(UserWarning, match="1 of 3 prompts have no answer. Prompt 1 is empty"):
            made.append(layer.generate(inputs, on_error="skip"))
    np.testing.assert_array_equal(made[0]["sequences"], made[1]["sequences"])


def test_only_datasets_are(layer):
    others = [TEXTS, "a", ROWS, {"input_ids": ROWS}, ragged, tf.constant(TEXTS), iter(slices(TEXTS))]
    assert not any(map(has_prompts, others)) and has_prompts(slices(TEXTS))
    with pytest.raises(TypeError, match="Pass a list of its elements"):
        layer.generate(iter(slices([[5, 6], [7, 8]])))


def test_ragged_batches_inside_a_pipeline(layer):
    made = [row for batch in slices(ragged).ragged_batch(2).map(layer) for row in batch["sequences"].numpy().tolist()]
    assert made == layer.generate(ROWS)["sequences"].tolist()
