"""Threefry against the known answers of its authors' Random123 library, as jax's own tests have them."""

import numpy as np
import pytest
from keras import ops

from keras_xla.config import GenerationOptions
from keras_xla.engine.search.random import threefry
from keras_xla.engine.search.request import seed_words

ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "answer"), ANSWERS)
def test_known_answers(key, counter, answer):
    words = [ops.convert_to_tensor(np.array(x, "uint32")) for x in (key, counter)]
    assert ops.convert_to_numpy(threefry(words[0], words[1][:, None]))[:, 0].tolist() == list(answer)


def test_all_bits_of_a_seed_count():
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1]
    words = {seed_words(GenerationOptions(do_sample=True, seed=seed), 1).tobytes() for seed in seeds}
    assert len(words) == len(seeds)
