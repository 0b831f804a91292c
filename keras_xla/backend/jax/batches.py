"""What a batch of Keras' JAX trainer is made of."""

from typing import Any

import jax
import numpy as np

from keras_xla.backend.filled_batch import FilledBatch
from keras_xla.backend.signature import Leaf, Signature, with_names


def leaves_of(batch: Any) -> Signature:
    """The tensors of a batch, or of one that was filled up, with the dtypes that jax gives them."""
    batch = batch.batch if isinstance(batch, FilledBatch) else batch
    if isinstance(batch, list) and type(batch) is not list:  # of several batches, in Keras' development version
        batch = batch[0]
    return tuple(
        Leaf(name, np.shape(x), str(jax.dtypes.canonicalize_dtype(_dtype(x)))) for name, x in with_names(batch)
    )


def _dtype(x) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
