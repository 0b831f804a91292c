"""Prompts that a model cannot run are left out; all others are completed."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_xla.config import GenerationOptions
from keras_xla.engine.batches import numbers as numbers_of
from keras_xla.engine.checks import check_lists
from keras_xla.generation.text import datasets
from keras_xla.generation.text.completion import Completion

ON_ERROR = ("raise", "skip")
_MOST_TOLD = 5
_NAN = "the model's logits are NaN"


def check_on_error(on_error: str, streamer: Any = None) -> None:
    """Raise a ValueError for what `generate` does not know, or cannot do while it tells a streamer."""
    if on_error not in ON_ERROR:
        raise ValueError(f'Received on_error={on_error!r}; expected "raise" or "skip".')
    if on_error == "skip" and streamer is not None:
        raise ValueError('Received a streamer with on_error="skip". Leave one of them out.')


@dataclass(frozen=True)
class Skipping:
    """One call, in which a bad prompt costs no other its answer.

    Attributes:
        complete: From inputs, options that come first and negative prompts to a `Completion`.
        inputs: Text, chats, ids or a dataset of them; see `XLAGenerationLayer`.
        options: Those of the call.
        overrides: The options among them that the call names.
        negative: Negative prompts, one for each prompt or one for all; or None.
    """

    complete: Callable[[Any, Mapping[str, Any], Any], Completion]
    inputs: Any
    options: GenerationOptions
    overrides: Mapping[str, Any]
    negative: Any = None

    def made(self) -> list | dict[str, np.ndarray]:
        """What `XLAGenerationLayer.generate` returns; for a bad prompt None, or no tokens and NaN as the score.

        Raises:
            TypeError, ValueError: if no prompt can be run; before anything compiles.
        """
        inputs = _listed(self.inputs)
        count = _count(inputs)
        check_lists(self.options, count)
        every = np.arange(count)
        bad = self._bad(inputs, every) if count > 1 else {}
        if len(bad) == count:
            self._completion(inputs, every).check()  # raises: it is about the options, as likely as not
        good = np.array([i for i in every if i not in bad], int)
        asked = self._completion(inputs, good)
        copies = self.options.num_return_sequences
        answers, total = numbers_of(good, copies), count * copies
        if asked.text is not None:
            texts = asked.texts()
            made: Any = [None] * total
            for i, text in zip(answers, texts, strict=True):
                made[i] = text
            broken = [i for i in answers if made[i] is None]
        else:
            outputs = asked.outputs()
            broken = answers[np.isnan(outputs["scores"])]
            made = {name: self._spread(name, array, answers, total) for name, array in outputs.items()}
        _warn(count, bad | {int(i) // copies: _NAN for i in broken})
        return made

    def _completion(self, inputs: Any, numbers: np.ndarray) -> Completion:
        """That of the prompts with these numbers."""
        if len(numbers) == _count(inputs):
            return self.complete(inputs, self.overrides, self.negative)
        lists, negative = self.options.per_row, self.negative
        own = {name: _take(x, numbers) if name in lists else x for name, x in self.overrides.items()}
        if isinstance(negative, (list, tuple)) and len(negative) == _count(inputs) > 1:
            negative = _take(negative, numbers)
        return self.complete(_take(inputs, numbers), own, negative)

    def _bad(self, inputs: Any, numbers: np.ndarray) -> dict[int, str]:
        """Why prompts cannot be run, by their numbers: halves are checked until a half is one prompt."""
        try:
            self._completion(inputs, numbers).check()
        except (TypeError, ValueError) as error:
            if len(numbers) == 1:
                return {int(numbers[0]): str(error)}
            middle = len(numbers) // 2
            return self._bad(inputs, numbers[:middle]) | self._bad(inputs, numbers[middle:])
        return {}

    def _spread(self, name: str, array: np.ndarray, answers: np.ndarray, total: int) -> np.ndarray:
        """An output of all prompts, made of that of the good ones."""
        fill = {"sequences": self.options.fill, "scores": np.nan}.get(name, 0)
        if array.ndim == 1:
            whole = np.full((total,), fill, array.dtype)
            whole[answers] = array
        else:  # those that are left may all be shorter
            whole = np.full((total, self.options.most_new_tokens, *array.shape[2:]), fill, array.dtype)
            whole[answers, : array.shape[1]] = array
        return whole


def _listed(inputs: Any) -> Any:
    """Inputs of one prompt or a dataset as a list; all others as they are."""
    if datasets.is_dataset(inputs):
        return datasets.listed(inputs)
    alone = isinstance(inputs, (list, tuple)) and bool(inputs) and isinstance(inputs[0], Mapping)  # a chat
    return [inputs] if alone or isinstance(inputs, (str, bytes)) else inputs


def _count(inputs: Any) -> int:
    leaf = inputs.get("input_ids", ()) if isinstance(inputs, Mapping) else inputs
    return len(leaf) if isinstance(leaf, (list, tuple)) else int(np.shape(leaf)[0]) if np.ndim(leaf) else 1


def _take(values: Any, numbers: Sequence[int]) -> Any:
    """Those with these numbers, in a form that is an input again."""
    if isinstance(values, Mapping):
        return {name: _take(each, numbers) for name, each in values.items()}
    if hasattr(values, "to_list") and not hasattr(values, "__array__"):  # a ragged tensor
        values = values.to_list()
    if isinstance(values, (list, tuple)):
        return [values[i] for i in numbers]
    return np.asarray(values)[np.asarray(numbers)]


def _warn(count: int, bad: dict[int, str]) -> None:
    if not bad:
        return
    said = []
    for i in sorted(bad)[:_MOST_TOLD]:
        named, found = re.subn(r"^(Prompt|Chat|Negative prompt|Decoder prompt) 0\b", rf"\1 {i}", bad[i])
        said.append(named if found else f"Prompt {i}: {named}")
    more = f" And {len(bad) - len(said)} more." if len(bad) > len(said) else ""
    warnings.warn(f"{len(bad)} of {count} prompts have no answer. {' '.join(said)}{more}", stacklevel=5)
