"""Prompts that come as a `tf.data.Dataset`, such as TensorFlow Datasets gives, as one list."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_xla.backend.data import is_dataset
from keras_xla.generation.text import prompts

_ENDLESS = -1  # what such a dataset says of its length


def has_prompts(inputs: Any) -> bool:
    """Whether the inputs are a `tf.data.Dataset`: an iterator over one, say, is none."""
    return is_dataset(inputs) and hasattr(inputs, "cardinality")


def listed(dataset: Any) -> list | dict[str, np.ndarray]:
    """All prompts of a dataset in its order: bytes, or 1-D int32 arrays of ids; with masks, a dict of ids and mask.

    Elements are prompts or batches of them; pairs with a label, of which the first part counts; or dicts with one
    feature of strings. Ids are vectors, batches or ragged batches of ints.

    Raises:
        ValueError: for a dataset that never ends, and for dicts with no or several features of strings.
    """
    if int(dataset.cardinality()) == _ENDLESS:
        raise ValueError("Received a dataset that never ends; expected one with an end. Pass dataset.take(number).")
    made: list = []
    masked = False
    for element in dataset:
        part = _prompts_of(element)
        if prompts.is_text(part):
            made += prompts.strings(part)
        elif isinstance(part, Mapping):
            masked = masked or part.get("attention_mask") is not None
            made += _rows(part, part["input_ids"])
        else:
            part = part[None] if len(part.shape) == 1 else part
            made += _rows(part, part)
    return _with_mask(made) if masked else made


def _rows(part: Any, ids: Any) -> list[np.ndarray]:
    """The rows of a batch; one without any id is told with the others, or left out alone."""
    empty = len(ids.shape) == 2 and ids.shape[1] == 0
    return [np.zeros((0,), np.int32)] * int(ids.shape[0]) if empty else prompts.rows(part)


def _with_mask(rows: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Rows without padding as ids and mask, both `(rows, longest)`: all of each are tokens, whatever their ids."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int32)}


def _prompts_of(element: Any) -> Any:
    """The tensor of prompts in an element, or ids with their mask."""
    if isinstance(element, (tuple, list)):
        return _prompts_of(element[0])
    if not isinstance(element, Mapping):
        return element
    if "input_ids" in element:
        one = len(element["input_ids"].shape) == 1  # a prompt, and no batch of them
        return {name: x[None] for name, x in element.items()} if one else element
    features = [name for name, value in element.items() if prompts.is_text(value)]
    if len(features) != 1:
        raise ValueError(
            f"Received a dataset of dicts with the features {sorted(element)}, of which {len(features)} are strings; "
            f'expected one. Pass dataset.map(lambda features: features["{sorted(element)[0]}"]), with the name of the '
            "prompts' feature."
        )
    return element[features[0]]
