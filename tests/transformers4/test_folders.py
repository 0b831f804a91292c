"""Folders saved by TensorFlow classes read as those of PyTorch, also where there are no such classes any more."""

import numpy as np
import pytest
import transformers
from transformers.modeling_tf_pytorch_utils import load_tf2_model_in_pytorch_model

from keras_xla import XLAGenerationLayer
from keras_xla.models.sources.checkpoint import open_checkpoint
from tests.transformers4.models import PROMPTS, VARIANTS, live, theirs


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("safetensors", [True, False], ids=["safetensors", "h5"])
def test_names_shapes_and_values_are_those_of_pytorch(variant, safetensors, tmp_path):
    model = live(variant)
    model.save_pretrained(tmp_path, safe_serialization=safetensors)
    folder = open_checkpoint(tmp_path)
    pytorch = getattr(transformers, type(model).__name__.removeprefix("TF"))(model.config)
    expected = load_tf2_model_in_pytorch_model(pytorch, model, allow_missing_keys=True).state_dict()
    assert folder.names() <= set(expected)
    for name in folder.names() - {"final_logits_bias"}:  # which transformers leaves as it is
        assert folder.shape(name) == tuple(expected[name].shape)
        np.testing.assert_array_equal(folder.read(name), expected[name].numpy())


@pytest.mark.parametrize("safetensors", [True, False], ids=["safetensors", "h5"])
@pytest.mark.quick("h5")
def test_a_saved_model_generates_as_before(safetensors, tmp_path):
    model = live("gpt2-ignored-options")
    model.save_pretrained(tmp_path, safe_serialization=safetensors)
    layer = XLAGenerationLayer.from_pretrained(tmp_path, max_new_tokens=6)
    assert layer.generate(PROMPTS)["sequences"].tolist() == theirs(model)


def test_a_damaged_file(tmp_path):
    live("gpt2").save_pretrained(tmp_path)
    (tmp_path / "tf_model.h5").write_bytes(b"not hdf5")
    with pytest.raises(ValueError, match=r"tf_model\.h5 cannot be read.*Download or save it again"):
        open_checkpoint(tmp_path)
