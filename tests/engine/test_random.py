"""Threefry against the known answers of its authors' Random123 library, as jax's own tests have them."""

import numpy as np
import pytest
from keras import ops

from keras_xla.engine.search.random import threefry

ANSWERS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "answer"), ANSWERS)
def test_known_answers(key, counter, answer):
    words = [ops.convert_to_tensor(np.array(x, "uint32")) for x in (key, counter)]
    assert ops.convert_to_numpy(threefry(words[0], words[1][:, None]))[:, 0].tolist() == list(answer)
