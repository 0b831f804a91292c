"""Before: text generation with transformers 4, TensorFlow and XLA by hand. See migrate_after.py.

pip install "transformers<5" tensorflow tf-keras
python examples/migrate_before.py
"""

import sys

import tensorflow as tf
from transformers import AutoTokenizer, TFAutoModelForCausalLM

model_name = sys.argv[1] if len(sys.argv) > 1 else "openai-community/gpt2"
prompts = ["TensorFlow is", "TensorFlow is a", "TFLite is a very small"]

tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="left", pad_token="</s>")
model = TFAutoModelForCausalLM.from_pretrained(model_name)
xla_generate = tf.function(model.generate, jit_compile=True)
for prompt in prompts:
    tokens = tokenizer([prompt], pad_to_multiple_of=8, padding=True, return_tensors="tf")
    generated = xla_generate(**tokens, num_beams=2, max_new_tokens=16)
    new = generated[0, tokens["input_ids"].shape[1] :]
    print(f"{prompt!r} -> {tokenizer.decode(new, skip_special_tokens=True)!r}")
