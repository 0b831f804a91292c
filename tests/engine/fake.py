"""A decoder over a tiny alphabet whose next letter follows from the last: the decode loop's behaviour, nothing else."""

import numpy as np
from keras import ops

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


def encode(text):
    return np.array([ALPHABET.index(letter) for letter in text], np.int32)


def decode(ids):
    return "".join(ALPHABET[i] for i in ids)
