"""Hugging Face's TensorFlow line: transformers 4, whose models are those of Keras 2."""

import pytest
import transformers

if int(transformers.__version__.split(".")[0]) >= 5:
    pytest.skip("transformers 5 has no TensorFlow classes; `make transformers4` runs this", allow_module_level=True)
