"""After: the script of migrate_before.py with keras_xla, on any transformers from 4.57 to 5. Same tokens, no padding.

pip install .  # in a checkout of keras_xla
python examples/migrate_after.py
"""

import sys

import keras_xla

model_name = sys.argv[1] if len(sys.argv) > 1 else "openai-community/gpt2"
prompts = ["TensorFlow is", "TensorFlow is a", "TFLite is a very small"]

layer = keras_xla.XLAGenerationLayer.from_pretrained(model_name, num_beams=2, max_new_tokens=16)
for prompt in prompts:
    print(f"{prompt!r} -> {layer.generate(prompt)[0]!r}")
