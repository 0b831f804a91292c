"""One contender in a process of its own: reads `{"batch", "new_tokens"}` a line, answers seconds and tokens a line.

Ours also reads options of `generate`, and may run with the keras_xla of an older checkout.

python benchmarks/workers.py NAME FOLDER PROMPT_LENGTH
"""

import contextlib
import functools
import json
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

THREADS = 2
FOLDERS = contextlib.ExitStack()
IDS = np.random.default_rng(0).integers(100, 30_000, (64, 64)).astype("int32")


def kept_folder():
    """The path of a folder that is there until the process ends."""
    return FOLDERS.enter_context(tempfile.TemporaryDirectory())


def ours(folder, prompt, **options):
    import keras_xla

    root = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    assert pathlib.Path(keras_xla.__file__).is_relative_to(root), "another keras_xla was imported"
    layer = keras_xla.XLAGenerationLayer.from_pretrained(folder, eos_token_id=None, **options)
    return lambda batch, new, **more: layer.generate(IDS[:batch, :prompt], max_new_tokens=new, **more)["sequences"]


def keras_hub(folder, prompt):
    import keras_hub

    kinds = {"gpt2": keras_hub.models.GPT2CausalLM, "llama": keras_hub.models.LlamaCausalLM}
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    task = kinds[config["model_type"]].from_preset(folder, preprocessor=None, dtype="float32")
    task.compile(sampler="greedy")

    def run(batch, new):
        ids = np.zeros((batch, prompt + new), "int32")
        ids[:, :prompt] = IDS[:batch, :prompt]
        given = dict(token_ids=ids, padding_mask=np.arange(prompt + new)[None] < np.full((batch, 1), prompt))
        return np.asarray(task.generate(given, stop_token_ids=None)["token_ids"])[:, prompt:]

    return run


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


def hf_torch(folder, prompt, compiled=False, dtype="float32"):
    import torch
    from transformers import AutoModelForCausalLM, CompileConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(device)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    options = {}
    if compiled:
        how = CompileConfig()
        how._compile_all_devices = True  # by default only on GPUs
        options = dict(cache_implementation="static", compile_config=how)

    def run(batch, new):
        ids = torch.tensor(IDS[:batch, :prompt], device=device)
        with torch.no_grad():
            given = dict(attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
            out = model.generate(ids, **given, **options)
        return out.cpu().numpy()[:, prompt:]

    return run


def ctranslate2(folder, prompt, kind):
    """Ids are given as words: the checkpoint's vocabulary is "0", "1", "2" ..., see `decode.save_vocabulary`."""
    import ctranslate2 as c

    converted = kept_folder()
    c.converters.TransformersConverter(folder).convert(converted, quantization=kind, force=True)
    generator = c.Generator(converted, compute_type=kind, inter_threads=1, intra_threads=THREADS)

    def run(batch, new):
        words = [[str(i) for i in row] for row in IDS[:batch, :prompt]]
        options = dict(sampling_topk=1, include_prompt_in_result=False, end_token=[], max_batch_size=64)
        results = generator.generate_batch(words, max_length=new, min_length=new, **options)
        return np.array([result.sequences_ids[0] for result in results])

    return run


def llama_cpp(folder, prompt, kind):
    """Through the C functions: one call a step for all rows, greedy."""
    import llama_cpp as c

    source = next(pathlib.Path(folder).glob("*.gguf"))
    if kind not in source.name:
        made = pathlib.Path(kept_folder()) / f"{kind}.gguf"
        how = c.llama_model_quantize_default_params()
        kinds = dict(F32=c.LLAMA_FTYPE_ALL_F32, Q8_0=c.LLAMA_FTYPE_MOSTLY_Q8_0, Q4_1=c.LLAMA_FTYPE_MOSTLY_Q4_1)
        how.ftype = kinds[kind]
        how.allow_requantize = True
        if c.llama_model_quantize(str(source).encode(), str(made).encode(), how):
            raise SystemExit(f"llama.cpp could not write {made}")
        source = made
    model = c.llama_model_load_from_file(str(source).encode(), c.llama_model_default_params())
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))

    @functools.cache
    def context(batch):
        how = c.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch, how.n_seq_max = 128 * batch, 512, 512, batch
        how.n_threads = how.n_threads_batch = THREADS
        return c.llama_init_from_model(model, how), c.llama_batch_init(batch * prompt, 0, 1)

    def run(batch, new):
        state, tokens = context(batch)
        c.llama_memory_clear(c.llama_get_memory(state), True)

        def decode(columns, first):
            """Next ids of all rows, of columns of ids: [B, length] -> [B]."""
            length = columns.shape[1]
            tokens.n_tokens = columns.size
            for row in range(batch):
                for column in range(length):
                    i = row * length + column
                    tokens.token[i], tokens.pos[i] = int(columns[row, column]), first + column
                    tokens.n_seq_id[i], tokens.seq_id[i][0] = 1, row
                    tokens.logits[i] = column == length - 1
            if c.llama_decode(state, tokens):
                raise RuntimeError("llama_decode failed")
            ends = [row * length + length - 1 for row in range(batch)]
            rows = (np.ctypeslib.as_array(c.llama_get_logits_ith(state, i), (vocabulary,)) for i in ends)
            return np.array([row.argmax() for row in rows])

        made = [decode(IDS[:batch, :prompt], 0)]
        for step in range(new - 1):
            made.append(decode(made[-1][:, None], prompt + step))
        return np.stack(made, axis=1)

    return run


CONTENDERS = {
    "ours": ours,
    "ours-before": functools.partial(ours, new_token_buckets=[64]),  # an older version: one executable for both runs
    "ours-exact": functools.partial(ours, cache_buckets=[72, 264]),  # what decode.py needs, without beams and with them
    "ours-256": functools.partial(ours, cache_buckets=[256]),  # what gpu.py needs: one executable for both runs
    "ours-256-bfloat16": functools.partial(ours, cache_buckets=[256], dtype="bfloat16"),
    "ours-256-int8": functools.partial(ours, cache_buckets=[256], dtype="bfloat16", quantization="int8"),
    "ours-int8": functools.partial(ours, quantization="int8"),
    "ours-int4": functools.partial(ours, quantization="int4"),
    "keras-hub": keras_hub,
    "hf-tf-xla": hf_tf_xla,
    "hf-torch": hf_torch,
    "hf-torch-compiled": functools.partial(hf_torch, compiled=True),
    "hf-torch-bfloat16": functools.partial(hf_torch, dtype="bfloat16"),
    "hf-torch-bfloat16-compiled": functools.partial(hf_torch, dtype="bfloat16", compiled=True),
    "ctranslate2": functools.partial(ctranslate2, kind="float32"),
    "ctranslate2-int8": functools.partial(ctranslate2, kind="int8"),
    "llama.cpp": functools.partial(llama_cpp, kind="F32"),
    "llama.cpp-q8": functools.partial(llama_cpp, kind="Q8_0"),
    "llama.cpp-q4": functools.partial(llama_cpp, kind="Q4_1"),
}


def main(name, folder, prompt):
    run = CONTENDERS[name](folder, int(prompt))
    print("ready", flush=True)
    with FOLDERS:
        answer(run)


def answer(run):
    """What `run` does for each line of standard input."""
    for line in sys.stdin:
        job = json.loads(line)
        batch, new = job.pop("batch"), job.pop("new_tokens")
        start = time.perf_counter()
        tokens = run(batch, new, **job)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "tokens": tokens.tolist()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
