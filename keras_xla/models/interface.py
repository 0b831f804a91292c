"""What the engine needs of a model, and nothing more."""

from typing import Any, NamedTuple, Protocol

from keras import ops

Memory = Any
"""Any nested structure of tensors."""
Cache = Any
"""Any nested structure of tensors whose first axis is the batch, or a multiple of it (batch times heads)."""


class Decoder(Protocol):
    """A causal language model that the decode loop can drive.

    Every row's tokens end at the same slot, unless tokens are guessed: prompts are left-padded, so one slice update a
    layer writes the cache for the whole batch. `starts (batch,) int32` is each row's first real slot; a token in slot
    `s` has position `s - start`. `max_positions` is None for a model without a limit.
    """

    vocab_size: int
    max_positions: int | None
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


class View(NamedTuple):
    """Where new tokens stand, and what they see. B rows, S new tokens, T cache slots."""

    positions: Any  # [B, S] int32, of the new tokens
    slot_positions: Any  # [B, T] int32, of the token in each slot, the new ones included
    seen: Any  # [B, S, T] bool: the slots that each new token attends to, its own included

    @classmethod
    def causal(cls, first: Any, length: int, slots: int, starts: Any) -> "View":
        """The view of `length` tokens a row at the slots from `first` on: each sees the real ones up to itself.

        Args:
            first: Int32, a scalar or `[B]`.
            length: S.
            slots: T.
            starts: `[B]` int32, each row's first real slot.
        """
        queries = ops.reshape(first, (-1, 1)) + ops.arange(length, dtype="int32")  # [1 or B, S]
        slot = ops.arange(slots, dtype="int32")
        past = slot[None, None, :] <= queries[:, :, None]
        real = slot[None, None, :] >= starts[:, None, None]
        return cls(queries - starts[:, None], slot[None] - starts[:, None], ops.logical_and(past, real))


class ChunkDecoder(Decoder, Protocol):
    """A decoder that can run several tokens a row at once over a cache that it did not fill itself.

    Its prompts come in chunks, its cache may grow, and its beams share the prompt's cache, none of which is copied.
    """

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """A cache of zeros with room for `slots` tokens a row.

        The axis that counts the slots is the only one whose length depends on them.
        """

    def extend(self, tokens: Any, slot: Any, view: View, cache: Cache) -> tuple[Any, Cache]:
        """Run the `tokens (batch, new)` int32, written to the slots from `slot` on.

        Args:
            tokens: `(batch, new)` int32.
            slot: Int32: a scalar, or `[batch]`, one for each row.
            view: What each of them sees.
            cache: With room for them.

        Returns:
            The logits `(batch, new, vocab_size)` float32, and the updated cache.
        """


class EncoderDecoder(Protocol):
    """A model that reads a source (text or speech) once and then decodes.

    `max_positions` counts the decoder's positions, `max_source` the encoder's (None: no limit).
    """

    vocab_size: int
    max_positions: int | None
    max_source: int | None
    variables: list

    def encode(self, source: Any, mask: Any) -> Any:
        """Run the encoder.

        Args:
            source: Token ids `(batch, length)` int32, right-padded; or speech features
                `(batch, mel bins, frames)` float32.
            mask: `(batch, length)` bool, the real tokens; None for speech.

        Returns:
            Hidden states `(batch, length, hidden)`.
        """

    def remember(self, hidden: Any, mask: Any) -> Memory:
        """What the decoder needs of hidden states, such as keys and values for cross-attention, computed once.

        Args:
            hidden: What `encode` returned.
            mask: `(batch, length)` bool over `hidden`; None for all.
        """

    def with_memory(self, memory: Memory) -> ChunkDecoder:
        """The decoder that attends to what `remember` returned."""
