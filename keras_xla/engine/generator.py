"""From ragged rows of ids to completions: checks, buckets, the right executable, and back."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.buckets import Buckets
from keras_xla.engine.compiled import Executables, Key
from keras_xla.engine.decode import decode
from keras_xla.engine.state import Request, Result, make_request
from keras_xla.models.interface import Decoder

_EOS = Buckets("number of eos ids", None, 4)


class Generator:
    """Runs the decode loop of one model, padded to buckets.

    Args:
        model: A `Decoder`.
        batch: Buckets of the batch size.
        prompt: Buckets of the prompt length.
        new_tokens: Buckets of `max_new_tokens`.
        on_recompile: `"log"` or `"raise"`, see `Executables`.
        name: For the compile log.
    """

    def __init__(
        self,
        model: Decoder,
        batch: Buckets,
        prompt: Buckets,
        new_tokens: Buckets,
        on_recompile: str = "log",
        name: str = "generate",
    ):
        self.model = model
        self._batch, self._prompt, self._new_tokens = batch, prompt, new_tokens
        self.executables = Executables(name, self._build, model.variables, on_recompile)

    def __call__(self, rows: Sequence[np.ndarray], options: GenerationOptions) -> dict[str, np.ndarray]:
        """Complete each row.

        Args:
            rows: 1-D int32 arrays, no padding.
            options: What to generate.

        Returns:
            `sequences (rows * num_return_sequences, max_new_tokens)` int32, new tokens only,
            right-padded; `lengths` int32, tokens made, an end-of-sequence token included; `scores`
            float32, the sum of their log-probabilities under the model.

        Raises:
            ValueError: for a row that is empty, holds an id outside of the vocabulary, or leaves no
                room for `max_new_tokens` positions; before anything compiles. Also if the model's
                logits are NaN.
        """
        self.check(rows, options)
        copies = options.num_return_sequences
        rows = [row for row in rows for _ in range(copies)]
        key, request = self._arrange(rows, options)
        result: Result = self.executables(key, *map(ops.convert_to_tensor, request))
        result = Result(*(ops.convert_to_numpy(x)[: len(rows)] for x in result))
        if np.isnan(result.scores).any():
            raise ValueError(
                f"The model's logits are NaN for rows {np.flatnonzero(np.isnan(result.scores)).tolist()}; "
                "its weights hold NaN or infinity, or its dtype overflows. Check the weights."
            )
        sequences = result.sequences[:, : options.max_new_tokens]
        return {"sequences": sequences, "lengths": result.lengths, "scores": result.scores}

    def warmup(self, batch: int, prompt: int, options: GenerationOptions) -> bool:
        """Compile for the buckets of this size, if need be; returns whether it was."""
        before = self.executables.trace_count
        key, request = self._arrange([np.zeros((prompt,), np.int32)] * batch, options)
        # One token is enough to run it once.
        request = request._replace(max_new_tokens=np.int32(1))
        self.executables(key, *map(ops.convert_to_tensor, request))
        return self.executables.trace_count > before

    def check(self, rows: Sequence[np.ndarray], options: GenerationOptions) -> None:
        """Raise for what `__call__` could not run."""
        vocab, room = self.model.vocab_size, self.model.max_positions
        if not rows:
            raise ValueError("Received no prompts; expected at least one.")
        for name, ids in (("eos_token_id", options.eos_token_id), ("pad_token_id", (options.fill,))):
            if outside := [i for i in ids if i >= vocab]:
                raise ValueError(f"Received {name} {outside}; expected ids below the vocabulary's {vocab}.")
        for i, row in enumerate(rows):
            if len(row) == 0:
                raise ValueError(f"Prompt {i} is empty; expected at least one token.")
            if row.min() < 0 or row.max() >= vocab:
                bad = row[(row < 0) | (row >= vocab)][0]
                raise ValueError(
                    f"Prompt {i} holds the token id {bad}; expected ids from 0 to {vocab - 1}. "
                    "Is the tokenizer that of this model?"
                )
            if len(row) >= room:
                raise ValueError(
                    f"Prompt {i} has {len(row)} tokens; the model has {room} positions, for prompt and new tokens "
                    "together. Shorten the prompt."
                )
            if len(row) + options.max_new_tokens > room:
                raise ValueError(
                    f"Prompt {i} has {len(row)} tokens, which with max_new_tokens={options.max_new_tokens} is more "
                    f"than the model's {room} positions. Pass max_new_tokens={room - len(row)} or less, or "
                    "shorten the prompt."
                )

    def _arrange(self, rows, options) -> tuple[Key, Request]:
        """The bucket of a request, and the request padded to it."""
        key = Key(
            batch=self._batch.fit(len(rows)),
            prompt=self._prompt.fit(max(map(len, rows))),
            new_tokens=self._new_tokens.fit(options.max_new_tokens),
            do_sample=options.do_sample,
            eos_slots=_EOS.fit(len(options.eos_token_id) or 1),
        )
        return key, make_request(rows, key.batch, key.prompt, key.eos_slots, options)

    def _build(self, key: Key):
        run = partial(decode, self.model, new_tokens=key.new_tokens, sampling=key.do_sample)
        return lambda *tensors: run(Request(*tensors))
