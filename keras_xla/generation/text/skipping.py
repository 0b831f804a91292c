"""Prompts that a model cannot run are left out; all others are completed."""

import re
from typing import Any

import numpy as np

from keras_xla.config import CONSTRAINTS
from keras_xla.engine.batches import rows_of
from keras_xla.engine.call import Call, one_for_each
from keras_xla.engine.checks import check_lists
from keras_xla.engine.padding import Rows
from keras_xla.generation.text import prompts
from keras_xla.generation.text.completion import Completion, check_led_away
from keras_xla.generation.text.logprobs import no_arrays
from keras_xla.generation.text.pipeline import TextCall, TextPipeline
from keras_xla.troubleshooting import warn

ON_ERROR = ("raise", "skip")
_MOST_TOLD = 5
_NAN = "the model's logits are NaN, or the options forbid every token"


def check_on_error(on_error: str, streamer: Any = None) -> None:
    """Raise a ValueError for what `generate` does not know, or cannot do while it tells a streamer."""
    if on_error not in ON_ERROR:
        raise ValueError(f'Received on_error={on_error!r}; expected "raise" or "skip".')
    if on_error == "skip" and streamer is not None:
        raise ValueError('Received a streamer with on_error="skip". Leave one of them out.')


class Sifted:
    """A call of which the bad prompts are taken out.

    Args:
        pipeline: Completes the others.
        asked: What the call asks for.

    Attributes:
        bad: Why prompts cannot be run, by their numbers.

    Raises:
        TypeError, ValueError: for options that no prompt could be run with; before anything compiles.
    """

    def __init__(self, pipeline: TextPipeline, asked: TextCall):
        self._generator, self._asked = pipeline.generator, asked
        self.bad: dict[int, str] = {}
        singles = prompts.one_by_one(asked.inputs)
        if not singles:
            asked.rows(asked.inputs)  # raises
        self._count = len(singles)
        check_lists(asked.options, self._count)
        check_led_away(asked.negative, asked.options)
        self._rows, self._decoder = self._read(singles)
        self._negative = self._read_negative()
        self._check_all()

    def check(self) -> None:
        """Raise for what the call asks for beside its prompts, as `answers` does."""
        if len(good := self._good()):
            self._completion(good)

    def _good(self) -> np.ndarray:
        """The numbers of the prompts that can be run."""
        return np.array([i for i in range(self._count) if i not in self.bad], int)

    def answers(self) -> list | dict[str, np.ndarray]:
        """What `XLAGenerationLayer.generate` returns; for a bad prompt None, or no tokens and NaN as the score."""
        asked, copies = self._asked, self._asked.options.num_return_sequences
        good = self._good()
        places, total = rows_of(good, copies), self._count * copies
        completion = self._completion(good) if len(good) else None
        if asked.told["text"] is not None:
            made: Any = [None] * total
            for i, text in zip(places, completion.texts() if completion else [], strict=True):
                made[i] = text
            broken = [i for i in places if made[i] is None]
        else:
            outputs = completion.outputs() if completion else self._nothing()
            broken = places[np.isnan(outputs["scores"])]
            made = {name: self._spread(name, array, places, total) for name, array in outputs.items()}
        self._warn(self.bad | {int(i) // copies: _NAN for i in broken})
        return made

    def _read(self, singles: list) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
        """The ids of each prompt, none of a bad one; and what the decoder begins with, if that is given."""
        nothing = np.zeros((0,), np.int32)
        rows: list[np.ndarray] = []
        begun: list[np.ndarray] = []
        for i, single in enumerate(singles):
            try:
                row, decoder = self._asked.rows(single)
            except (TypeError, ValueError) as error:
                row, decoder, self.bad[i] = [nothing], [nothing], str(error)
            rows += row
            begun += decoder or []
        return rows, begun if any(map(len, begun)) else None

    def _read_negative(self) -> Rows | None:
        """The ids of the negative prompts, one for all or one for each; what is wrong with one costs its prompt."""
        singles = [] if self._asked.negative is None else prompts.one_by_one(self._asked.negative)
        if not singles or len(singles) != self._count:
            rows = self._asked.negative_rows()  # raises
            return None if rows is None else one_for_each(rows, self._count)
        made: list[np.ndarray] = []
        for i, single in enumerate(singles):
            try:
                made += self._asked.rows(single, "Negative prompt")[0]
            except (TypeError, ValueError) as error:
                made.append(np.zeros((0,), np.int32))
                self.bad.setdefault(i, str(error))
        return made

    def _check_all(self) -> None:
        """Find the prompts that the generator cannot run: halves are checked until a half is one prompt."""
        self._check_constraints()
        numbers = self._good()
        if not len(numbers) or not self._problem(numbers):
            return
        self._check_options(numbers)

        def search(numbers: np.ndarray) -> None:
            if (problem := self._problem(numbers)) and len(numbers) == 1:
                self.bad[int(numbers[0])] = problem
            elif problem:
                for half in np.array_split(numbers, 2):
                    search(half)

        search(numbers)

    def _check_constraints(self) -> None:
        """Find the prompts whose own schema, expression or grammar cannot be read."""
        options, told = self._asked.options, self._asked.told
        if told["tokenizer"] is None or not any(name in CONSTRAINTS for name in options.per_row):
            return
        grammars = told["grammars"](options.eos_token_id)
        for i in self._good().tolist():
            if (constraint := options.constraint_of(i)) is not None:
                try:
                    grammars.guide(*constraint)
                except (TypeError, ValueError) as error:
                    self.bad[i] = str(error)

    def _check_options(self, numbers: np.ndarray) -> None:
        """Raise if not even a prompt that any model can run would run with one of the prompts' options."""
        one, problem = [np.zeros((1,), np.int32)], None
        for number in numbers:
            try:
                self._generator.check(Call(one, self._asked.options.of_rows([number]), self._decoder and one))
                return
            except ValueError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _problem(self, numbers: np.ndarray) -> str:
        try:
            self._generator.check(self._call(numbers))
        except (TypeError, ValueError) as error:
            return str(error)
        return ""

    def _call(self, numbers: np.ndarray) -> Call:
        rows, decoder, negative = (_taken(x, numbers) for x in (self._rows, self._decoder, self._negative))
        return Call(rows, self._asked.options.of_rows(numbers), decoder, negative=negative, **self._asked.given)

    def _completion(self, numbers: np.ndarray) -> Completion:
        call = self._call(numbers).replace(room_for=self._count)
        if not call.options.guided:  # those that were guided may all be bad
            call = call.replace(negative=None)
        return Completion(self._generator, call, numbers=numbers.tolist(), **self._asked.told)

    def _nothing(self) -> dict[str, np.ndarray]:
        shape = (0, self._asked.options.most_new_tokens)
        made = dict(sequences=np.zeros(shape, np.int32), lengths=np.zeros((0,), np.int32))
        made |= dict(scores=np.zeros((0,), np.float32))
        told = self._asked.told
        return made | (no_arrays(shape, told["top_logprobs"]) if told["output_logprobs"] else {})

    def _spread(self, name: str, array: np.ndarray, places: np.ndarray, total: int) -> np.ndarray:
        """An output of all prompts, made of that of the good ones."""
        fill = {"sequences": self._asked.options.fill, "scores": np.nan}.get(name, 0)
        if array.ndim == 1:
            whole = np.full((total,), fill, array.dtype)
            whole[places] = array
        else:  # those that are left may all be shorter
            whole = np.full((total, self._asked.options.most_new_tokens, *array.shape[2:]), fill, array.dtype)
            whole[places, : array.shape[1]] = array
        return whole

    def _warn(self, bad: dict[int, str]) -> None:
        if not bad:
            return
        said = []
        for i in sorted(bad)[:_MOST_TOLD]:
            alone = r"^(Prompt|Chat|Negative prompt|Decoder prompt|The tokenizer's chat template refused chat) 0\b"
            named, found = re.subn(alone, rf"\1 {i}", bad[i])
            said.append(named if found else f"Prompt {i}: {named}")
        more = f" And {len(bad) - len(said)} more." if len(bad) > len(said) else ""
        warn(f"{len(bad)} of {self._count} prompts have no answer. {' '.join(said)}{more}")


def _taken(rows: Rows | None, numbers: np.ndarray) -> Any:
    """Those with these numbers; None stays."""
    return None if rows is None else [rows[i] for i in numbers]
