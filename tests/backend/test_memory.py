"""What a lack of memory looks like, in the words of TensorFlow, XLA and Python."""

import pytest
import tensorflow as tf

from keras_xla.backend.memory import lacks_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), True),
        (tf.errors.InternalError(None, None, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate"), True),
        (MemoryError(), True),
        (tf.errors.InvalidArgumentError(None, None, "no kernel"), False),
    ],
)
def test_what_a_lack_of_memory_looks_like(error, expected):
    assert lacks_memory(error) is expected
