"""Logits processors: what forbids tokens, before one is chosen."""

from keras import ops

from keras_xla.engine.samplers import OFF


def eos_mask(eos, vocab_size: int):
    """Which tokens end a sequence, `[V]` bool; `eos [N]` int32, unused entries -1."""
    return ops.any(ops.arange(vocab_size, dtype="int32")[:, None] == eos[None, :], axis=-1)


def forbid_eos(logits, ends, step, min_new_tokens):
    """Turn end-of-sequence tokens off until `min_new_tokens` are made; `ends [V]` bool."""
    return ops.where(ops.logical_and(ends[None, :], step < min_new_tokens), OFF, logits)
