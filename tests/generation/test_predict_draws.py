"""Batches of one `predict` draw each for itself, on both backends; calls with one seed draw alike."""

import keras
import numpy as np
import pytest

from keras_xla import XLAGenerationLayer
from keras_xla.models.registry import load_model
from keras_xla.models.sources.checkpoint import open_checkpoint


@pytest.mark.quick_on_jax
def test_batches_of_a_predict_draw_each_for_itself(checkpoint):
    model = load_model(open_checkpoint(checkpoint("llama-tied-gqa")))
    layer = XLAGenerationLayer(model, max_new_tokens=8, do_sample=True, temperature=3.0, seed=1)
    inputs = keras.Input((3,), dtype="int32")
    pipeline = keras.Model(inputs, layer(inputs))
    same = np.array([[5, 6, 7]] * 4)
    made = pipeline.predict(same, batch_size=2, verbose=0)["sequences"]
    assert len({tuple(row) for row in made.tolist()}) == 4
    assert (made == layer.generate(same)["sequences"]).all()  # as if they had run together
    assert (layer.generate(same)["sequences"] == layer.generate(same, max_new_tokens=8)["sequences"]).all()
