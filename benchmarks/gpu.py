"""Steady greedy decode on one GPU: us on the JAX backend, PyTorch transformers, and the memory-bandwidth limit.

    python benchmarks/gpu.py

It needs JAX and PyTorch with CUDA, no TensorFlow, and 80 GB on the GPU for the model of 7B. Every contender runs in a
process of its own; rounds alternate between them. The weights are random, in the shapes of GPT-2 124M, of Llama 3.2 1B
and of Llama 2 7B. Milliseconds a step are the difference of a 130-token and a 2-token run, divided by 128. The limit:
all matrices that a step multiplies with, and the keys and values of the tokens that it sees, read once, at the speed of
PyTorch's sum of 4 GB.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import raw_lines
from contender import Contender
from facts import measured, told

HERE = pathlib.Path(__file__).parent
RAW = HERE / "results" / "gpu.jsonl"
PROMPT, SHORT, NEW = 64, 2, 130
LENGTH = PROMPT + (SHORT + NEW) / 2  # tokens that the middle of the measured steps sees
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
GRAPHS = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL"}
BESIDE = "While one model was measured, others were loaded by processes beside it. "  # until commit 24fc693
EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # JAX's default is TF32, PyTorch's is float32

# (name, layers, hidden size, size of keys and of values, head size, intermediate size, matrices of an MLP, vocabulary)
MODELS = {
    "gpt2": ("GPT-2 124M", 12, 768, 768, 64, 3072, 2, 50257),
    "llama-7b": ("Llama 7B", 32, 4096, 4096, 128, 11008, 3, 32000),
    "llama-1b": ("Llama 1B", 16, 2048, 512, 64, 8192, 3, 128256),
}
# name: (label, kind of weights, worker, whether this one is ours, environment)
CONTENDERS = {
    "jax-float32": ("keras_xla, float32", "float32", "ours-256", True, EXACT),
    "torch-float32": ("PyTorch, float32", "float32", "hf-torch", False, None),
    "jax": ("keras_xla, bfloat16", "bfloat16", "ours-256-bfloat16", True, None),
    "jax-graphs": ("keras_xla, bfloat16, loops in CUDA graphs", "bfloat16", "ours-256-bfloat16", True, GRAPHS),
    "torch": ("PyTorch, bfloat16", "bfloat16", "hf-torch-bfloat16", False, None),
    "torch-compiled": ("PyTorch, bfloat16, torch.compile", "bfloat16", "hf-torch-bfloat16-compiled", False, None),
    "jax-int8": ("keras_xla, int8", "int8", "ours-256-int8", True, None),
}
ONE_MODEL, ONE_BATCH = {"jax-float32": "gpt2", "torch-float32": "gpt2"}, {"torch-compiled": 1}  # measured only there


def bytes_a_step(model: str, weights: str, batch: int) -> float:
    """Bytes that a step has to read: the matrices, and what is kept of the tokens that it sees."""
    _, layers, hidden, keys, _, intermediate, matrices, vocabulary = MODELS[model]
    block = 2 * hidden**2 + 2 * hidden * keys + matrices * hidden * intermediate
    kept = batch * LENGTH * layers * 2 * keys * BYTES["float32" if weights == "float32" else "bfloat16"]
    return (layers * block + hidden * vocabulary) * BYTES[weights] + kept


def make_checkpoint(model: str, folder: str) -> None:
    """Random weights as PyTorch transformers saves them; in a process that hands the GPU's memory back."""
    import torch
    import transformers

    _, layers, hidden, keys, head, intermediate, _, vocabulary = MODELS[model]
    torch.manual_seed(0)
    if model == "gpt2":
        config = transformers.GPT2Config(initializer_range=0.1)
    else:
        config = transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=hidden // head,
            num_key_value_heads=keys // head,
            max_position_embeddings=2048,
            tie_word_embeddings=model == "llama-1b",
            initializer_range=0.05,
        )
        torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def read_bandwidth(gigabytes: int = 4, repeats: int = 5) -> float:
    """Bytes a second of a sum on the GPU, best of `repeats`."""
    import torch

    x = torch.ones(gigabytes * 250_000_000, device="cuda")
    best, (begin, end) = 0.0, (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(repeats + 1):  # the first one compiles
        begin.record()
        x.sum()
        end.record()
        torch.cuda.synchronize()
        best = max(best, x.nbytes / (begin.elapsed_time(end) / 1e3))
    return best


def start(name: str, folder: str) -> tuple[Contender, float]:
    """A contender, and the seconds it took to load; several are started at once, where there are cores."""
    label, _, worker, ours, env = CONTENDERS[name]
    begun, backend = time.perf_counter(), "jax" if ours else None
    env = {**(env or {}), **({"JAX_PLATFORMS": "cuda"} if ours else {})}  # without a GPU JAX would go on on the CPU
    made = Contender(label, sys.executable, "workers.py", worker, folder, str(PROMPT), backend=backend, env=env)
    return made, time.perf_counter() - begun


def warm(contender: Contender, batches: list[int]) -> dict[int, float]:
    """Seconds of the first call of each batch size; what is measured compiles nothing."""
    first = {}
    for batch in batches:
        first[batch] = contender.ask(batch=batch, new_tokens=NEW)["seconds"]
        for new in (SHORT, NEW, SHORT):  # PyTorch's graphs are recorded by the second call of a shape
            contender.ask(batch=batch, new_tokens=new)
    return first


def batches_of(name: str, batches: list[int]) -> list[int]:
    """Those with which a contender is measured."""
    return [batch for batch in batches if ONE_BATCH.get(name, batch) == batch]


def measure(model: str, started: dict, args, pool: ThreadPoolExecutor) -> Iterator[dict]:
    """A line for each contender, size and round, as soon as it is known."""
    contenders = {name: future.result() for name, future in started.items()}
    print(f"# {model}:", {name: f"{seconds:.0f} s" for name, (_, seconds) in contenders.items()}, file=sys.stderr)
    warmed = {name: pool.submit(warm, c, batches_of(name, args.batches)) for name, (c, _) in contenders.items()}
    first = {name: future.result() for name, future in warmed.items()}
    print(f"# {model}, first calls: {first}", file=sys.stderr, flush=True)
    for batch in args.batches:
        here = {name: c for name, (c, _) in contenders.items() if batch in first[name]}
        for number in range(args.rounds):
            tokens: dict[str, list] = {}
            for name, c in here.items():
                weights, speed = CONTENDERS[name][1], read_bandwidth()
                short, long = (c.ask(batch=batch, new_tokens=new) for new in (SHORT, NEW))
                rows = zip(tokens.setdefault(weights, long["tokens"]), long["tokens"], strict=True)
                same = [
                    next((i for i, pair in enumerate(zip(*row, strict=True)) if len({*pair}) > 1), NEW) for row in rows
                ]
                ms = (long["seconds"] - short["seconds"]) / (NEW - SHORT) * 1e3
                line = dict(model=model, contender=name, batch=batch, round=number, ms=ms, speed=speed)
                line |= dict(limit=bytes_a_step(model, weights, batch) / speed * 1e3, first=first[name][batch])
                yield line | dict(same=statistics.median(same), loading=contenders[name][1], alone=True)
    for c, _ in contenders.values():
        c.close()


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    rounds = 1 + max(line["round"] for line in lines)
    speed = statistics.median(line["speed"] for line in lines)
    alone = all(line.get("alone") for line in lines)
    text = [
        "# Steady greedy decode on a GPU",
        "",
        f"`python benchmarks/gpu.py`, {lines[0]['gpu']}, {told(lines[0])}. "
        f"Prompts of {PROMPT} tokens, {NEW} new ones; {rounds} alternating rounds, medians. Random weights. The limit: "
        "the matrices, and the keys and values of the tokens that a step sees, read once at "
        f"{speed / 1e12:.2f} TB/s, which a sum of 4 GB reached before every run. PyTorch is transformers' `generate` "
        f"with its defaults; with torch.compile it has a static cache. {'' if alone else BESIDE}In brackets: the share "
        "of the limit, and how many times as long as keras_xla with weights of the same kind it took.",
    ]
    for model, (title, *_) in MODELS.items():
        mine = [line for line in lines if line["model"] == model]
        batches = sorted({line["batch"] for line in mine})
        if mine:
            text += ["", f"## {title}", ""]
            text += [f"| milliseconds a step | {' | '.join(f'batch {each}' for each in batches)} | loaded in, s |"]
            text += ["|---|" + "---|" * (len(batches) + 1)]
        for name in dict.fromkeys(line["contender"] for line in mine):
            each = [line for line in mine if line["contender"] == name]
            cells = [cell(mine, name, batch) for batch in batches]
            text.append(f"| {CONTENDERS[name][0]} | {' | '.join(cells)} | {each[0]['loading']:.0f} |")
        text += ["", *alike(mine)] if mine else []
    return "\n".join(text) + "\n"


def alike(lines: list[dict]) -> list[str]:
    """Which tokens are those of keras_xla, a line for each contender beside it."""
    said = []
    for name in dict.fromkeys(line["contender"] for line in lines):
        if name != (ours := ours_like(name)):
            same = min(line["same"] for line in lines if line["contender"] == name)
            tokens = "all tokens are" if same == NEW else f"the first {same:.0f} tokens are"
            said.append(
                f"- {CONTENDERS[name][0]}: {tokens} those of {CONTENDERS[ours][0]}, in half of the rows or more."
            )
    return said


def ours_like(name: str) -> str:
    """Which of ours has weights of the same kind."""
    return next(each for each, (_, kind, *_) in CONTENDERS.items() if kind == CONTENDERS[name][1])


def cell(lines: list[dict], name: str, batch: int) -> str:
    """What a table says of a contender and a batch size."""
    mine = [line for line in lines if (line["contender"], line["batch"]) == (name, batch)]
    if not mine:
        return ""
    share = statistics.median(line["limit"] / line["ms"] for line in mine)
    said = f"{statistics.median(line['ms'] for line in mine):.2f} ({share:.0%}"
    beside = {x["round"]: x["ms"] for x in lines if (x["contender"], x["batch"]) == (ours_like(name), batch)}
    ratios = [line["ms"] / beside[line["round"]] for line in mine if line["round"] in beside]
    if name != ours_like(name) and ratios:
        said += f", {statistics.median(ratios):.2f}x"
    return said + ")"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="for checkpoints of up to 14 GB; default: the system's temporary folder")
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the table stands beside them")
    parser.add_argument("--report", action="store_true", help="only make the table of the raw lines again")
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        return make_checkpoint(*args.make)
    if max(args.batches) > 64:
        parser.error("there are 64 prompts")
    if args.report:
        lines = raw_lines.read(args.raw)
    else:
        import torch

        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share the GPU
        when = measured("keras", "jax", "torch", "transformers") | dict(gpu=torch.cuda.get_device_name())
        lines = raw_lines.of_the_same(args.raw, when)
        for model in args.models:
            lines = [line for line in lines if line["model"] != model or line["contender"] not in args.only]
            with tempfile.TemporaryDirectory(dir=args.folder) as folder, ThreadPoolExecutor(16) as pool:
                subprocess.run([sys.executable, __file__, "--make", model, folder], check=True)
                names = [name for name in args.only if ONE_MODEL.get(name, model) == model]
                started = {name: pool.submit(start, name, folder) for name in names}
                for line in measure(model, started, args, pool):
                    lines.append(line | when)
                    raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
