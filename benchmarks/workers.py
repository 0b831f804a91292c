"""One contender in a process of its own: reads `{"batch", "new_tokens"}` a line, answers seconds a line.

python benchmarks/workers.py NAME FOLDER PROMPT_LENGTH
"""

import functools
import json
import sys
import time

import numpy as np

IDS = np.random.default_rng(0).integers(100, 50_000, (64, 64)).astype("int32")


def ours(folder, prompt, **options):
    import keras_xla

    layer = keras_xla.XLAGenerationLayer.from_pretrained(folder, eos_token_id=None, **options)
    return lambda batch, new: layer.generate(IDS[:batch, :prompt], max_new_tokens=new)["sequences"]


def hf_tf_xla(folder, prompt):
    import tensorflow as tf
    from safetensors.numpy import load_file
    from transformers import GPT2Config, TFGPT2LMHeadModel

    model = TFGPT2LMHeadModel(GPT2Config.from_pretrained(folder))
    model(model.dummy_inputs)
    weights = load_file(f"{folder}/model.safetensors")  # their own reader of such a file needs PyTorch
    for variable in model.weights:
        name = variable.name.split("/", 1)[1].removesuffix(":0").replace("h_._", "h/").replace("/", ".")
        for theirs, stored in (("gamma", "weight"), ("beta", "bias"), ("embeddings", "weight")):
            name = name.replace(theirs, stored)
        variable.assign(weights[name].reshape(variable.shape))
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    generate = tf.function(model.generate, jit_compile=True)

    def run(batch, new):
        ids = tf.constant(IDS[:batch, :prompt])
        out = generate(ids, attention_mask=tf.ones_like(ids), max_new_tokens=new, do_sample=False)
        return out.numpy()[:, prompt:]

    return run


def hf_torch(folder, prompt):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0

    def run(batch, new):
        ids = torch.tensor(IDS[:batch, :prompt])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
        return out.numpy()[:, prompt:]

    return run


def main(name, folder, prompt):
    quantized = {f"ours-{kind}": functools.partial(ours, quantization=kind) for kind in ("int8", "int4")}
    kinds = {"ours": ours, **quantized, "hf-tf-xla": hf_tf_xla, "hf-torch": hf_torch}
    run = kinds[name](folder, int(prompt))
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        tokens = run(job["batch"], job["new_tokens"])
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "tokens": tokens.tolist()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
