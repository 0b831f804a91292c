"""A decoder of the user's own: while its methods are traced, what they return is checked."""

from typing import Any

import keras

from keras_xla.models.interface import Cache, Decoder


class CheckedDecoder:
    """A `Decoder` whose `prefill` and `step` raise where the engine could not go on with what they return.

    All else is as the decoder has it.
    """

    def __init__(self, decoder: Decoder):
        self._decoder = decoder

    def __getattr__(self, name: str) -> Any:
        mine = name.startswith("_")  # what copies and pickles ask for
        return object.__getattribute__(self, name) if mine else getattr(self._decoder, name)

    def prefill(self, ids: Any, starts: Any, slots: int) -> tuple[Any, Cache]:
        """See `Decoder.prefill`. Raises `TypeError` or `ValueError` for no logits of these prompts, and a cache."""
        return self._pair("prefill", self._decoder.prefill(ids, starts, slots), ids.shape[0])

    def step(self, tokens: Any, slot: Any, starts: Any, cache: Cache) -> tuple[Any, Cache]:
        """See `Decoder.step`. Raises as `prefill`, and a `ValueError` for a cache of other shapes or dtypes."""
        logits, after = self._pair("step", self._decoder.step(tokens, slot, starts, cache), tokens.shape[0])
        if (given := _described(cache)) != (returned := _described(after)):
            raise ValueError(
                f"{self._name('step')} returned the cache {_told(returned)}, where it was given {_told(given)}; "
                "expected the same structure, shapes and dtypes, as all steps run in one compiled loop."
            )
        return logits, after

    def _name(self, method: str) -> str:
        return f"{type(self._decoder).__name__}.{method}"

    def _pair(self, method: str, made: Any, batch: int) -> tuple[Any, Cache]:
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise TypeError(
                f"{self._name(method)} returned a {type(made).__name__}; expected a pair: the logits of the next token "
                "(batch, vocab_size), and the cache."
            )
        logits, cache = made
        wanted, shape = (batch, self._decoder.vocab_size), tuple(getattr(logits, "shape", ()))
        if shape != wanted:
            raise ValueError(
                f"{self._name(method)} returned logits of the shape {shape}; expected {wanted}: (batch, vocab_size), "
                "those of the next token in each row."
            )
        return logits, cache


def _described(cache: Cache) -> dict[str, str | None]:
    """By the path of each leaf, its dtype and shape; a list and a tuple are alike."""
    return {".".join(map(str, path)): _kind(x) for path, x in keras.tree.flatten_with_path(cache)}


def _kind(x: Any) -> str | None:
    return None if x is None else f"{keras.backend.standardize_dtype(x.dtype)} {tuple(x.shape)}"


def _told(described: dict[str, str | None]) -> str:
    return ", ".join(f"{path}: {kind}" if path else str(kind) for path, kind in described.items())
