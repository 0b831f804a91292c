"""A small tree of tokens, run level by level through `extend`, and the paths that it stands for."""

import numpy as np
from keras import ops

from keras_xla.models.interface import View

# For each level and row, the parents of its tokens in the level before.
PARENTS = [
    [[0, 0, 0], [0, 0, 0]],
    [[0, 0, 2], [2, 1, 1]],
    [[1, 2, 2, 0], [0, 0, 1, 2]],
    [[3, 0], [1, 1]],
]


def run(decoder, prompts, vocab):
    """Run a tree of random tokens behind two `prompts` of different length.

    Returns:
        `[(logits [vocab], row, path), ...]`: what `decoder` made of each token, its row, and the ids of the whole
        path to it.
    """
    rng = np.random.default_rng(1)
    width, levels = max(map(len, prompts)) + 1, [np.array(level) for level in PARENTS]
    starts = np.array([width - len(prompt) for prompt in prompts], "int32")
    padded = np.zeros((2, width), "int32")
    for row, prompt in enumerate(prompts):
        padded[row, starts[row] :] = prompt
    slots = width + sum(level.shape[1] for level in levels)
    _, cache = decoder.prefill(ops.convert_to_tensor(padded), ops.convert_to_tensor(starts), slots)

    slot_positions = np.arange(slots)[None] - starts[:, None]
    before = [[(list(prompt), np.arange(width) >= start)] for prompt, start in zip(prompts, starts, strict=True)]
    made, slot = [], width
    for depth, parents in enumerate(levels):
        size = parents.shape[1]
        tokens = rng.integers(3, vocab, (2, size)).astype("int32")
        positions = np.array([[len(prompt) + depth] * size for prompt in prompts], "int32")
        slot_positions[:, slot : slot + size] = positions
        seen, now = np.zeros((2, size, slots), bool), [[], []]
        for row in range(2):
            for i in range(size):
                path, past = before[row][parents[row, i]]
                seen[row, i, : len(past)] = past
                seen[row, i, slot + i] = True
                now[row].append(([*path, int(tokens[row, i])], seen[row, i, : slot + size].copy()))
        before, view = now, View(*map(ops.convert_to_tensor, (positions, slot_positions.astype("int32"), seen)))
        logits, cache = decoder.extend(ops.convert_to_tensor(tokens), ops.convert_to_tensor(slot, "int32"), view, cache)
        logits = ops.convert_to_numpy(logits)
        made += [(logits[row, i], row, before[row][i][0]) for row in range(2) for i in range(size)]
        slot += size
    return made
