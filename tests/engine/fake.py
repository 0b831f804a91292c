"""A decoder over a tiny alphabet whose next letter follows from the last: the decode loop's behaviour, nothing else."""

import numpy as np
from keras import ops

from keras_xla.models.interface import View
from keras_xla.models.layers import cache as kv

ALPHABET = "_abcdefgh."
EOS = ALPHABET.index(".")


class Follow:
    """After letter `i` comes letter `i + 1`, with certainty that grows with `sharpness`; after `.` comes `a`."""

    max_positions = 64
    vocab_size = len(ALPHABET)
    variables = ()

    def __init__(self, sharpness=10.0, max_positions=64):
        table = np.zeros((self.vocab_size, self.vocab_size), "float32")
        for i in range(1, self.vocab_size):
            table[i, 1 + i % (self.vocab_size - 1)] = sharpness
        self.table, self.max_positions = table, max_positions

    def prefill(self, ids, starts, slots):
        cache = [(ops.zeros((ids.shape[0], 1, slots, 1)), ops.zeros((ids.shape[0], 1, slots, 1)))]
        return ops.take(ops.convert_to_tensor(self.table), ids[:, -1], axis=0), cache

    def step(self, tokens, slot, starts, cache):
        return ops.take(ops.convert_to_tensor(self.table), tokens, axis=0), cache


class Fixed(Follow):
    """The same logits whatever came before."""

    def __init__(self, logits):
        self.vocab_size, self.max_positions = len(logits), 64
        self.table = np.tile(np.asarray(logits, "float32"), (len(logits), 1))


class Recall(Follow):
    """What comes next follows from the last three tokens, which it finds by their positions in its cache.

    That token's logit is the sharpness, the others' are 0.
    """

    def empty_cache(self, batch, slots):
        return ops.zeros((batch, slots, 1)), ops.zeros((batch, slots, 1))

    def extend(self, tokens, slot, view, cache):
        def column(x):
            return ops.cast(x, "float32")[..., None]

        known, positions = kv.write(cache, column(tokens), column(view.positions), slot)  # [B, T, 1]
        following = ops.zeros(tokens.shape)
        for back, factor in enumerate((3.0, 5.0, 7.0)):
            there = positions[:, None, :, 0] == column(view.positions - back)  # [B, S, T]
            there = ops.cast(ops.logical_and(there, view.seen), "float32")
            following = following + factor * ops.sum(there * known[:, None, :, 0], axis=-1)
        following = 1 + ops.cast(following, "int32") % (self.vocab_size - 1)
        return self.table.max() * ops.one_hot(following, self.vocab_size), (known, positions)

    def step(self, tokens, slot, starts, cache):
        logits, cache = self.extend(tokens[:, None], slot, View.causal(slot, 1, cache[0].shape[1], starts), cache)
        return logits[:, 0], cache


def encode(text):
    return np.array([ALPHABET.index(letter) for letter in text], np.int32)


def decode(ids):
    return "".join(ALPHABET[i] for i in ids)
