"""Steady greedy decode: us, our peers and the memory-bandwidth limit, for GPT-2 124M, SmolLM2-135M and a Llama of 1B.

    make bench
    python benchmarks/decode.py --peer .venv-peer/bin/python --models gpt2 --batches 1
    python benchmarks/decode.py --before OLDER_CHECKOUT

Every contender runs in a process of its own; rounds alternate between them. Of the Llama, only those with weights of
the same kind alternate, as memory does not hold all of them. Milliseconds a step are the difference of a 64-token and a
2-token run, divided by 62, so prompt, call and compile costs drop out. SmolLM2 has real weights, the others random
ones. The raw lines of a model are replaced when it is measured, and the table is made of all of them.

With `--before` the contenders are keras_xla of now, the same with caches of just the size that is needed, and an older
checkout, with beams, too; the raw lines and the table are others then.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import raw_lines
from bandwidth import read_bandwidth
from contender import ROOT, Contender
from facts import commit, measured, told
from medians import middle

HERE = pathlib.Path(__file__).parent
RAW = HERE / "results" / "decode.jsonl"
RAW_BEFORE = HERE / "results" / "decode_before.jsonl"
BEAMS = 4
PROMPT, SHORT, NEW = 8, 2, 64  # Hugging Face's TF XLA generate fails for one new token
FITTING = PROMPT + NEW, PROMPT + BEAMS * NEW  # slots of a cache, without beams and with them
PAUSE = 0.5  # seconds: the threads of whoever ran before spin for a while

# Weights that a step reads, in float32: the blocks, the final norm, and the embedding as the head.
MODELS = {
    "gpt2": ("GPT-2 124M", 4 * (12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 50257 * 768)),
    "smollm2": ("SmolLM2-135M", 4 * (30 * (2 * 576**2 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576) + 576 + 49152 * 576)),
    "llama-1b": (
        "Llama 1B",
        4 * (16 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048) + 2048 + 128256 * 2048),
    ),
}
LARGE = ("llama-1b",)  # memory holds only contenders with weights of one kind at a time
TURNS = (
    " Only contenders with weights of the same kind ran side by side and took turns, as memory does not hold all of "
    "them; others were left out for that reason."
)
LEFT_OUT = {"llama-1b": ("jax", "hf-torch", "hf-torch-compiled", "hub-tf", "hub-jax")}  # for lack of memory
# name: (label, kind of weights, worker, backend of Keras, only for these models, in the peers' environment)
CONTENDERS = {
    "tf": ("keras_xla, TensorFlow", "float32", "ours", "tensorflow", None, False),
    "jax": ("keras_xla, JAX", "float32", "ours", "jax", None, False),
    "hf-torch": ("HF transformers 5, PyTorch", "float32", "hf-torch", None, None, False),
    "hf-torch-compiled": ("HF transformers 5, torch.compile", "float32", "hf-torch-compiled", None, None, False),
    "hf-tf-xla": ("HF transformers 4.57, TF XLA", "float32", "hf-tf-xla", None, ("gpt2",), True),
    "hub-tf": ("KerasHub, TensorFlow", "float32", "keras-hub", "tensorflow", None, False),
    "hub-jax": ("KerasHub, JAX", "float32", "keras-hub", "jax", None, False),
    "ctranslate2": ("CTranslate2", "float32", "ctranslate2", None, None, True),
    "llama.cpp": ("llama.cpp", "float32", "llama.cpp", None, ("smollm2", "llama-1b"), True),
    "tf-int8": ("keras_xla int8, TensorFlow", "int8", "ours-int8", "tensorflow", None, False),
    "jax-int8": ("keras_xla int8, JAX", "int8", "ours-int8", "jax", None, False),
    "ctranslate2-int8": ("CTranslate2 int8", "int8", "ctranslate2-int8", None, None, True),
    "llama.cpp-q8": ("llama.cpp Q8_0", "int8", "llama.cpp-q8", None, ("smollm2", "llama-1b"), True),
    "tf-int4": ("keras_xla int4, TensorFlow", "int4", "ours-int4", "tensorflow", None, False),
    "jax-int4": ("keras_xla int4, JAX", "int4", "ours-int4", "jax", None, False),
    "llama.cpp-q4": ("llama.cpp Q4_1", "int4", "llama.cpp-q4", None, ("smollm2", "llama-1b"), True),
}
OURS = {"float32": "tf", "int8": "tf-int8", "int4": "tf-int4"}  # what the others are compared with


def measure(model, args):
    """A line for each contender, size and round, as soon as its group of contenders is through."""
    with tempfile.TemporaryDirectory() as folder:
        if args.before and model == "smollm2":
            yield take_turns(model, with_older(smollm2_file(), args.before), args)
            return
        make_checkpoint(folder, model, args.peer)
        if args.before:
            yield take_turns(model, with_older(folder, args.before), args)
            return
        names = [name for name in CONTENDERS if runs(name, model, args)]
        kinds = dict.fromkeys(CONTENDERS[name][1] for name in names) if model in LARGE else [None]
        for kind in kinds:
            group = [name for name in names if kind in (None, CONTENDERS[name][1])]
            yield take_turns(model, with_peers(folder, group, args.peer), args)


def take_turns(model, contenders, args):
    """A line for each of some contenders, which run side by side, and for each size and round."""
    bytes_a_step, lines = MODELS[model][1], []
    sizes = [dict(batch=batch) for batch in args.batches]
    sizes += [dict(batch=1, num_beams=BEAMS)] if args.before else []
    first = []
    for size in sizes:
        first.append({name: c.ask(**size, new_tokens=NEW)["seconds"] for name, c in contenders.items()})
        for c in contenders.values():
            c.ask(**size, new_tokens=SHORT)
    for number in range(args.rounds):
        for size, at_first in zip(sizes, first, strict=True):
            reference = None
            order = -1 if args.before and number % 2 else 1  # peers are compared with the first one's tokens
            for name, c in list(contenders.items())[::order]:
                time.sleep(PAUSE)
                limit = bytes_a_step / read_bandwidth() * 1e3
                short, long = (c.ask(**size, new_tokens=new) for new in (SHORT, NEW))
                reference = reference or long["tokens"]
                line = dict(model=model, contender=name, label=c.label, **size, round=number, limit=limit)
                line |= dict(ms=(long["seconds"] - short["seconds"]) / (NEW - SHORT) * 1e3)
                lines.append({**line, "first": at_first[name], "same": long["tokens"] == reference})
    for c in contenders.values():
        c.close()
    return lines


def runs(name, model, args):
    """Whether a contender can run the model, and was asked for."""
    only, peer = CONTENDERS[name][-2:]
    possible = (only is None or model in only) and name not in LEFT_OUT.get(model, ())
    return possible and (args.peer or not peer) and (not args.only or name in args.only)


def with_peers(folder, names, peers_python):
    """Ours and others, started."""
    contenders = {}
    for name in names:
        label, _, worker, backend, _, peer = CONTENDERS[name]
        python = peers_python if peer else sys.executable
        contenders[name] = Contender(label, python, "workers.py", worker, folder, str(PROMPT), backend=backend)
    return contenders


def with_older(source, before):
    """Ours and those of an older checkout, started; those of a backend run one after the other."""
    contenders = {}
    for name, backend in (("tf", "tensorflow"), ("jax", "jax")):
        for worker, root in (("ours", ROOT), ("ours-exact", ROOT), ("ours-before", before.resolve())):
            label = f"{name}{worker.removeprefix('ours')}"
            given = (sys.executable, "workers.py", worker, source, str(PROMPT))
            contenders[label] = Contender(label, *given, root=root, backend=backend)
    return contenders


def report(lines):
    """The tables of raw lines."""
    if any(line["contender"].endswith("-before") for line in lines):
        return report_before(lines)
    text = ["# Steady greedy decode", ""]
    text += [f"`make bench`, {lines[0]['cores']} cores. Prompt of {PROMPT} tokens, {NEW} new ones; medians."]
    for model in MODELS:
        mine = [line for line in lines if line["model"] == model]
        text += section(model, mine) if mine else []
    return "\n".join(text) + "\n"


def section(model, lines):
    """A model's heading and tables."""
    title, bytes_a_step = MODELS[model]
    limit, rounds = statistics.median(line["limit"] for line in lines), 1 + max(line["round"] for line in lines)
    differ = sorted({line["label"] for line in lines if weights(line) == "float32" and not line["same"]})
    alike = f"all but {', '.join(differ)}" if differ else "all"
    batches, made = sorted({line["batch"] for line in lines}), cells(lines)
    labels = {line["contender"]: line["label"] for line in lines}
    text = [
        "",
        f"### {title}",
        "",
        f"{lines[0]['date']}, commit {lines[0]['commit']}, {rounds} alternating rounds. Limit: "
        f"{bytes_a_step / 1e6:.0f} MB of float32 weights a step at {bytes_a_step / limit / 1e6:.1f} GB/s, measured "
        f"before every run: {limit:.1f} ms. In float32, {alike} make the same tokens. In brackets: times keras_xla on "
        f"TensorFlow with weights of the same kind.{TURNS if model in LARGE else ''}",
        "",
        f"| ms a step | {' | '.join(f'batch {batch}' for batch in batches)} |",
        f"|---|{'---|' * len(batches)}",
    ]
    for name, label in labels.items():
        each = (made[name, batch] for batch in batches)
        text.append(f"| {label} | {' | '.join(f'{ms:.1f} ({ratio:.2f}x)' for ms, ratio, _, _ in each)} |")
    text += ["", "| | batch | min - max | times the float32 limit | first call, s |", "|---|---|---|---|---|"]
    for (name, batch), (_, _, spread, to_limit) in made.items():
        first = next(line["first"] for line in lines if (line["contender"], line["batch"]) == (name, batch))
        text.append(f"| {labels[name]} | {batch} | {spread} | {to_limit:.2f} | {first:.1f} |")
    return text


def cells(lines):
    """For each contender and batch size: ms a step, its ratio to ours, its spread, and its ratio to the limit."""
    of = {}
    for line in lines:
        of.setdefault((line["contender"], line["batch"]), []).append(line)
    made = {}
    for (name, batch), each in of.items():
        ours = of.get((OURS[weights(each[0])], batch), each)
        ms = [line["ms"] for line in each]
        ratio = statistics.median(a["ms"] / b["ms"] for a, b in zip(each, ours, strict=True))
        to_limit = statistics.median(line["ms"] / line["limit"] for line in each)
        made[name, batch] = statistics.median(ms), ratio, f"{min(ms):.1f} - {max(ms):.1f}", to_limit
    return made


def report_before(lines):
    """The table of raw lines of now and of an older version, in pairs."""
    of, rounds = {}, 1 + max(line["round"] for line in lines)
    for line in lines:
        backend, _, before = line["contender"].partition("-")
        pair = of.setdefault((line["model"], *size_of(line), backend), {})
        pair.setdefault(before or "now", []).append(line)
    text = [
        "# Steady decode, beside an older version",
        "",
        f"`python benchmarks/decode.py --before FOLDER`, {told(lines[0])}. Before: commit {lines[0]['before']}. Prompt "
        f"of {PROMPT} tokens, {NEW} new ones, float32; {rounds} rounds in which all take turns; medians, in brackets "
        "the lowest and the highest. Now beside before: of the two runs in a round; below 1 it is faster now. Fitting: "
        f"now, with caches of just the slots that are needed, `cache_buckets={list(FITTING)}`, as the older version "
        "had them. Same tokens: of all of them, on both backends.",
        "",
        "| | | backend | before, ms a step | now, ms a step | now beside before | fitting beside before "
        "| first call, s: before, now | same tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (model, batch, beams, backend), pair in of.items():
        before, now, fitting = pair["before"], pair["now"], pair["exact"]
        cells = [MODELS[model][0], f"batch {batch}, " + (f"{beams} beams" if beams > 1 else "greedy")]
        cells += ["TensorFlow" if backend == "tf" else "JAX"]
        cells += [middle([line["ms"] for line in mine], ".1f") for mine in (before, now)]
        for mine in (now, fitting):
            cells += [middle([b["ms"] / a["ms"] for a, b in zip(before, mine, strict=True)], ".2f")]
        cells += [f"{before[0]['first']:.1f}, {now[0]['first']:.1f}"]
        alike = (line["same"] for line in lines if [line["model"], *size_of(line)] == [model, batch, beams])
        cells += ["yes" if all(alike) else "no"]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def size_of(line):
    """Batch and beams of a raw line."""
    return line["batch"], line.get("num_beams", 1)


def weights(line):
    """The kind of weights of a raw line's contender."""
    return CONTENDERS[line["contender"]][1]


def smollm2_file():
    """The path of a file that both versions read."""
    sys.path.append(str(HERE.parent / "examples"))
    import smollm2

    return str(smollm2.fetch())


def make_checkpoint(folder, model="gpt2", peer=None):
    """A checkpoint as PyTorch transformers saves it, with a file of llama.cpp for those that it knows."""
    if model == "smollm2":  # PyTorch transformers needs two more packages for it
        subprocess.run([peer, HERE / "smollm2_checkpoint.py", folder], check=True)
        return
    if model == "llama-1b":
        subprocess.run([sys.executable, HERE / "llama_checkpoint.py", folder], check=True)
        return
    import torch
    from smollm2_checkpoint import save_vocabulary
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(initializer_range=0.1)).save_pretrained(folder)
    save_vocabulary(folder, 50257)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="a Python with benchmarks/peer-requirements.txt installed")
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, to compare with")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: all; with --before the small ones")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="contenders; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--raw", type=pathlib.Path, help="the raw lines; the table stands beside them")
    args = parser.parse_args()
    args.raw = args.raw or (RAW_BEFORE if args.before else RAW)
    args.models = args.models or [model for model in MODELS if not args.before or model not in LARGE]
    if args.peer is None and not args.before and "smollm2" in args.models:
        raise SystemExit("SmolLM2's checkpoint is made by the peers' environment: give --peer, or --models gpt2.")
    lines = raw_lines.read(args.raw)
    for model in args.models:
        when = measured("keras", "tensorflow", "jax")
        when |= dict(before=commit(args.before)) if args.before else {}
        lines = [line for line in lines if line["model"] != model]
        for made in measure(model, args):
            lines += [{**line, **when} for line in made]
            raw_lines.write(args.raw, lines)
    raw_lines.publish(args.raw, report(lines))


if __name__ == "__main__":
    main()
