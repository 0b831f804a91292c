"""What the engine needs of a model, and nothing more: the interfaces for a decoder of your own.

`XLAGenerationLayer` takes any object with the methods and attributes of `Decoder`, `ChunkDecoder` or `EncoderDecoder`.
No base class is needed. Methods are compiled by XLA, so they are written in `keras.ops`, with fixed shapes, and without
Python decisions that depend on values.
"""

from typing import Any, NamedTuple, Protocol

from keras import ops

Memory = Any
"""What a decoder keeps of an encoder's hidden states: any nested structure of tensors."""
Cache = Any
"""Any nested structure of tensors whose first axis is the batch, or a multiple of it (batch times heads).

Shapes and dtypes stay the same from step to step, as a compiled loop needs.
"""


class Decoder(Protocol):
    """A causal language model that makes one token after the other: the simplest decoder that a layer takes.

    A slot is a place in the cache for one token of each row. Prompts are padded on the left, so every row's tokens end
    at the same slot, and one slice update a layer writes the cache for the whole batch. `starts (batch,)` int32 is each
    row's first real slot: a token in slot `s` has the position `s - start` in its text. What stands before must not
    change the logits.

    Each method is compiled once for each bucket of batch and cache, `prefill` also for each power of two of the
    prompts' length. A row with `starts` equal to the length of the prompts only fills the batch; its logits may be
    anything but NaN. A row that is finished goes on while others do. Its position may then be `max_positions` or more:
    clip it before you look it up.

    Attributes:
        vocab_size: How many tokens there are (int).
        max_positions: The most tokens that a row may have, prompt and new ones together (int); None for no limit.
        variables: The `keras.Variable`s that the methods read. They are read at each call, so that new values count.

    Example:
    ```python
    class Next:  # after each token comes the one with the next number
        vocab_size, max_positions, variables = 10, None, []

        def prefill(self, ids, starts, slots):
            return self.logits(ids[:, -1]), keras.ops.zeros((ids.shape[0], 1))  # it has nothing to keep

        def step(self, tokens, slot, starts, cache):
            return self.logits(tokens), cache

        def logits(self, tokens):
            return keras.ops.one_hot((tokens + 1) % self.vocab_size, self.vocab_size, dtype="float32")

    counting = keras_xla.XLAGenerationLayer(Next(), max_new_tokens=4)
    print(counting.generate([[3], [6, 7]])["sequences"])  # 4 5 6 7 and 8 9 0 1
    ```
    """

    vocab_size: int
    max_positions: int | None
    variables: list

    def prefill(self, ids: Any, starts: Any, slots: int) -> tuple[Any, Cache]:
        """Run the prompts, and make a cache with room for `slots` tokens a row.

        Args:
            ids: `(batch, prompt)` int32, padded on the left.
            starts: `(batch,)` int32, each row's first real slot.
            slots: How many slots the cache has (a Python int), at least `prompt`.

        Returns:
            The logits of the token after each prompt, `(batch, vocab_size)` float32, and the cache.
        """

    def step(self, tokens: Any, slot: Any, starts: Any, cache: Cache) -> tuple[Any, Cache]:
        """Run one more token of each row.

        Args:
            tokens: `(batch,)` int32, the token of each row.
            slot: Scalar int32 tensor, the slot of the cache that the tokens go to.
            starts: `(batch,)` int32, each row's first real slot.
            cache: What `prefill` or the last `step` returned.

        Returns:
            The logits of the next token, `(batch, vocab_size)` float32, and the updated cache, of the same shapes and
            dtypes.
        """


class View(NamedTuple):
    """Where new tokens stand, and what they see, as `ChunkDecoder.extend` gets it. B rows, S new tokens, T cache slots.

    Attributes:
        positions: `(B, S)` int32, the position of each new token in its text.
        slot_positions: `(B, T)` int32, the position of the token in each slot, the new ones included.
        seen: `(B, S, T)` bool, the slots that each new token attends to, its own included.
    """

    positions: Any  # [B, S] int32, of the new tokens
    slot_positions: Any  # [B, T] int32, of the token in each slot, the new ones included
    seen: Any  # [B, S, T] bool: the slots that each new token attends to, its own included

    @classmethod
    def causal(cls, first: Any, length: int, slots: int, starts: Any) -> "View":
        """Return the view of `length` tokens a row, at the slots from `first` on: each sees the real ones up to itself.

        Args:
            first: The slot of the first of them: int32, a scalar or `(B,)`.
            length: S, how many new tokens each row has (int).
            slots: T, how many slots the cache has (int).
            starts: `(B,)` int32, each row's first real slot.

        Returns:
            A `View`.
        """
        queries = ops.reshape(first, (-1, 1)) + ops.arange(length, dtype="int32")  # [1 or B, S]
        slot = ops.arange(slots, dtype="int32")
        past = slot[None, None, :] <= queries[:, :, None]
        real = slot[None, None, :] >= starts[:, None, None]
        return cls(queries - starts[:, None], slot[None] - starts[:, None], ops.logical_and(past, real))


class ChunkDecoder(Decoder, Protocol):
    """A decoder that can run several tokens a row at once, over a cache that it did not fill itself.

    The layer does more with it than with a `Decoder`. Its prompts come in chunks, so their length compiles nothing. Its
    cache may grow. Its beams share the prompt's cache, none of which is copied. Prompts can be saved, chats keep their
    past, texts have scores, and tokens can be guessed. A layer takes an object for one if it has the methods
    `empty_cache` and `extend` beside those of `Decoder`.

    Unless tokens are guessed, all rows write to the same slots.
    """

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """Make a cache of zeros with room for `slots` tokens a row.

        Args:
            batch: How many rows it has (int).
            slots: How many slots it has (int).

        Returns:
            The cache. In each tensor, the axis that counts the slots is the only one whose length depends on them.
        """

    def extend(self, tokens: Any, slot: Any, view: View, cache: Cache) -> tuple[Any, Cache]:
        """Run several more tokens of each row, and write them to the slots from `slot` on.

        Args:
            tokens: `(batch, new)` int32.
            slot: The slot of the first of them: int32, a scalar, or `(batch,)`, one for each row.
            view: The positions of the tokens, and what each of them sees.
            cache: A cache with room for them: what `empty_cache`, or the last call, returned.

        Returns:
            The logits of the token after each one, `(batch, new, vocab_size)` float32, and the updated cache, of the
            same shapes and dtypes.
        """


class EncoderDecoder(Protocol):
    """A model that reads a source (text or speech) once, and then decodes.

    Attributes:
        vocab_size: How many tokens there are (int).
        max_positions: The most tokens that the decoder can have in a row (int); None for no limit.
        max_source: The most tokens that the encoder can read (int); None for no limit.
        source_vocab_size: How many tokens the encoder knows (int); `vocab_size` without this attribute.
        variables: The `keras.Variable`s that the methods read. They are read at each call, so that new values count.
    """

    vocab_size: int
    max_positions: int | None
    max_source: int | None
    variables: list

    def encode(self, source: Any, mask: Any) -> Any:
        """Run the encoder.

        Args:
            source: Token ids `(batch, length)` int32, padded on the right; or speech features
                `(batch, mel bins, frames)` float32.
            mask: `(batch, length)` bool, True for real tokens; None for speech.

        Returns:
            Hidden states `(batch, length, hidden)`, of a float dtype.
        """

    def remember(self, hidden: Any, mask: Any) -> Memory:
        """Compute once what the decoder needs of hidden states, such as keys and values for cross-attention.

        Args:
            hidden: What `encode` returned.
            mask: `(batch, length)` bool, which of the hidden states are real; None for all.

        Returns:
            Any nested structure of tensors.
        """

    def with_memory(self, memory: Memory) -> ChunkDecoder:
        """Return the decoder that attends to what `remember` returned.

        Args:
            memory: What `remember` returned.

        Returns:
            A `ChunkDecoder`.
        """
