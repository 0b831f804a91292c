"""Any Keras model from ids to logits as a `Decoder`: without a cache, all tokens run again for each new one."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_xla import backend
from keras_xla.models.interface import Cache

# B batch, P prompt slots, L length of the buffer, V vocabulary

_IDS = ("token_ids", "input_ids")
_MASKS = ("padding_mask", "attention_mask")


class Recompute:
    """A Keras model without a cache; implements the `Decoder` protocol.

    The "cache" is the tokens themselves. Each row's are moved to its own beginning, so positions are right and a
    causal model never sees what lies behind them; the logits are those of the row's last token. A new token costs
    a run over the whole buffer: the model's own length if that is fixed, or else prompt and new tokens.

    The model's weights are read at every call: after more `fit`, the new ones count and nothing compiles again.

    Args:
        model: From ids `(batch, length)` to logits `(batch, length, vocab)`, the length fixed or not. Of several
            outputs, the first, or the one named `"logits"`. Probabilities are recognized (by a trial: at every
            position they are at least 0 and add up to 1) and their logarithm taken. Inputs may also be a dict or
            list of ids and padding mask, named `token_ids`, `padding_mask` or `input_ids`, `attention_mask`.
        max_positions: The most tokens the model can read. By default the fixed length of its input, or else found
            by a trial of the sizes of its embedding tables, or None (no limit). On GPU, TensorFlow reads zeros
            behind the end of a table, and the trial finds nothing: say it there.

    Raises:
        TypeError: if the model is no built Keras model, has other inputs, or remembers one call in the next.
        ValueError: if its outputs have another shape, or if it is not causal (a later token changes the logits of
            an earlier one).

    Example:
    ```python
    inputs = keras.Input((80,), dtype="int32")
    x = keras.layers.Embedding(1000, 64)(inputs)
    x = keras.layers.LSTM(64, return_sequences=True)(x)
    decoder = Recompute(keras.Model(inputs, keras.layers.Dense(1000)(x)))
    ```
    """

    def __init__(self, model: keras.Model, max_positions: int | None = None):
        expected = "expected a Keras model from ids (batch, length) to logits (batch, length, vocab)"
        if not isinstance(model, keras.layers.Layer):
            raise TypeError(f"Received a {type(model).__name__}, which is no Keras model; {expected}.")
        if not model.built:
            raise TypeError(
                f"Received a {type(model).__name__} that has not been built; {expected}. Call it on ids once, or load "
                "its weights."
            )
        self.model = model
        if stateful := [layer.name for layer in getattr(model, "layers", ()) if getattr(layer, "stateful", False)]:
            raise TypeError(
                f"Received the model {model.name!r} with the stateful layers {stateful}, which remember one call in "
                "the next; expected a model that reads each text from its beginning. Set stateful=False."
            )
        self._pack, length = _inputs(model)
        trial = length or min(8, max_positions or 8)
        self.vocab_size = _check_shape(model, self._forward(keras.KerasTensor((1, trial), "int32")), trial)
        if not self._runs(trial, self.vocab_size - 1) and self._runs(trial):
            raise ValueError(
                f"Received the model {model.name!r}, which makes logits of {self.vocab_size} tokens, but cannot read "
                f"the last of them: of token {self.vocab_size - 1} it makes no finite logits. Its embedding needs a "
                "row for each token that it may make."
            )
        self._probabilities = self._try(trial)
        # A Sequential notes the length of its Input or of its first call, but most of its layers take others too.
        self._length = None if length is None or self._runs(length + 1) else length
        limits = [limit for limit in (max_positions, self._length) if limit is not None]
        self.max_positions = min(limits) if limits else self._longest()
        self.variables = list(model.variables)

    def prefill(self, ids, starts, slots: int) -> tuple:
        """See `Decoder.prefill`."""
        tokens = to_beginning(ids, starts, self._length or min(slots, self.max_positions or slots))  # [B, L]
        return self._logits(tokens, ids.shape[1] - 1 - starts), tokens

    def step(self, tokens, slot, starts, cache: Cache) -> tuple:
        """See `Decoder.step`."""
        position = slot - starts  # [B]
        here = ops.arange(cache.shape[1], dtype="int32") == position[:, None]
        cache = ops.where(here, tokens[:, None], cache)
        return self._logits(cache, position), cache

    def _logits(self, tokens, position):
        """Logits `[B, V]` float32 at each row's `position [B]` of the `tokens [B, L]`."""
        batch, length = tokens.shape
        position = ops.clip(position, 0, length - 1)  # of rows that only fill the bucket, or are finished
        mask = ops.cast(ops.arange(length, dtype="int32") <= position[:, None], "int32")
        scores = self._forward(tokens, mask)
        rows = ops.arange(batch, dtype="int32") * length + position
        last = ops.take(ops.reshape(scores, (batch * length, self.vocab_size)), rows, axis=0)
        last = ops.cast(last, "float32")
        return ops.log(ops.maximum(last, 1e-30)) if self._probabilities else last

    def _forward(self, tokens, mask=None):
        """What the model makes of `tokens [B, L]`: logits or probabilities `[B, L, V]`."""
        outputs = self.model(self._pack(tokens, ops.ones_like(tokens) if mask is None else mask), training=False)
        if isinstance(outputs, dict) and "logits" in outputs:
            return outputs["logits"]
        return outputs[0] if isinstance(outputs, (list, tuple)) else outputs

    def _try(self, length: int) -> bool:
        """Run random tokens; returns whether the outputs are probabilities, and raises if the model is not causal."""
        half = max(1, length // 2)
        tokens = np.random.default_rng(0).integers(0, self.vocab_size, (2, length), "int32")
        tokens[1] = (tokens[0] + (np.arange(length) >= half)) % self.vocab_size  # differs in the second half
        scores = self._run(tokens)
        one, other = scores[:, :half]
        change = np.abs(one - other).max()
        if change > 1e-3 * np.abs(one).max():
            raise ValueError(
                f"Received the model {self.model.name!r}, which is not causal: a change of token {half} changed the "
                f"logits of tokens before it by up to {change:.2g}. Generation needs a model whose logits depend on "
                "the tokens so far only; pass use_causal_mask=True to its attention, and use no bidirectional layer."
            )
        return bool((scores >= 0).all() and np.abs(scores.sum(-1) - 1).max() < 0.01)

    def _longest(self) -> int | None:
        """The size of a table of positions, found by its failure on one token more."""
        tables = [v for v in self.model.variables if len(v.shape) == 2 and _may_be_positions(v)]
        for size in sorted({v.shape[0] for v in tables}):
            if 1 < size <= _LONGEST_TRIAL and self._runs(size) and not self._runs(size + 1):
                return size
        return None

    def _runs(self, length: int, token: int = 0) -> bool:
        """Whether the model gives finite logits for so many times the same token."""
        try:
            return bool(np.isfinite(self._run(np.full((1, length), token, "int32"))).all())
        except Exception:  # of the backend's own kind
            return False

    def _run(self, tokens: np.ndarray) -> np.ndarray:
        """The outputs `[B, L, V]` float32 for `tokens [B, L]`, outside of any graph."""
        # Op by op, TensorFlow complains of an index outside of a table, and XLA does not; JAX makes it NaN.
        eager = backend.name == "tensorflow"
        run = self._forward if eager else backend.jit(self._forward, self.model.variables)
        return ops.convert_to_numpy(ops.cast(run(ops.convert_to_tensor(tokens)), "float32"))


def to_beginning(ids: Any, starts: Any, width: int) -> Any:
    """The left-padded `ids [B, P]` with each row's tokens at its beginning and zeros behind, `[B, width]`."""
    prompt, at = ids.shape[1], ops.arange(width, dtype="int32")
    index = ops.minimum(starts[:, None] + at, prompt - 1)
    return ops.where(at < (prompt - starts)[:, None], ops.take_along_axis(ids, index, axis=1), 0)


_LONGEST_TRIAL = 4096  # a run over more tokens could take seconds


def _may_be_positions(variable: Any) -> bool:
    return variable.name == "embeddings" or "pos" in variable.path.lower()


def _inputs(model: Any) -> tuple:
    """How to pass ids and mask to the model, and the length of its input, None if any will do."""
    if not getattr(model, "inputs", None):  # a subclass: its call says nothing about what it takes
        return (lambda ids, mask: ids), None
    structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    flat = keras.tree.flatten(structure)
    names = sorted(structure) if isinstance(structure, dict) else [x.name.split(":")[0] for x in flat]
    roles = ["ids"] if len(flat) == 1 else [_role(name) for name in names]
    if sorted(map(str, roles)) not in (["ids"], ["ids", "mask"]):
        raise TypeError(
            f"Received the model {model.name!r} with the inputs {names}; expected one of ids (batch, length), or "
            f"two named {_IDS[0]!r} and {_MASKS[0]!r} (or {_IDS[1]!r} and {_MASKS[1]!r})."
        )
    shape = tuple(flat[roles.index("ids")].shape)
    if len(shape) != 2:
        raise TypeError(
            f"Received the model {model.name!r} with an input of shape {shape}; expected ids of shape (batch, length)."
        )

    def pack(ids, mask):
        return keras.tree.pack_sequence_as(structure, [ids if role == "ids" else mask for role in roles])

    return pack, shape[1]


def _role(name: str) -> str | None:
    return "ids" if name in _IDS else "mask" if name in _MASKS else None


def _check_shape(model: Any, scores: Any, length: int) -> int:
    """The size of the vocabulary of an output for `(1, length)` ids."""
    shape = tuple(getattr(scores, "shape", ()))
    dtype = getattr(scores, "dtype", type(scores).__name__)
    if len(shape) != 3 or shape[:2] != (1, length) or not keras.backend.is_float_dtype(dtype):
        hint = " It predicts one token a text; let it predict one at every position (return_sequences=True)."
        raise ValueError(
            f"Received the model {model.name!r}, which makes {dtype} {shape} of ids of shape (1, {length}); expected "
            f"float logits of shape (1, {length}, vocab), one for the token after each token."
            + (hint if len(shape) == 2 else "")
        )
    return int(shape[2])
