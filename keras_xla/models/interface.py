"""What the engine needs of a model, and nothing more."""

from typing import Any, Protocol

Cache = list[tuple[Any, Any]]
"""One `(keys, values)` pair a layer, each `(batch * kv_heads, slots, head_dim)`."""


class Decoder(Protocol):
    """A causal language model that the decode loop can drive.

    Every row's tokens end at the same slot: prompts are left-padded, so one slice update a layer writes the
    cache for the whole batch. `starts (batch,) int32` is each row's first real slot; a token in slot `s` has
    position `s - start`.
    """

    vocab_size: int
    max_positions: int
    variables: list

    def prefill(self, ids: Any, starts: Any, slots: int) -> tuple[Any, Cache]:
        """Run the prompt and make a cache with room for `slots` tokens.

        Args:
            ids: `(batch, prompt)` int32, left-padded.
            starts: `(batch,)` int32.
            slots: Cache slots, at least `prompt`.

        Returns:
            The logits of the last slot `(batch, vocab_size)` float32, and the cache.
        """

    def step(self, tokens: Any, slot: Any, starts: Any, cache: Cache) -> tuple[Any, Cache]:
        """Run one token a row, at `slot`.

        Args:
            tokens: `(batch,)` int32.
            slot: Scalar int32, where in the cache the tokens go.
            starts: `(batch,)` int32.
            cache: What `prefill` or the last `step` returned.

        Returns:
            The logits `(batch, vocab_size)` float32, and the updated cache.
        """
