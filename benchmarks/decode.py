"""Steady greedy decode of GPT-2 124M (random weights), float32: us, our peers and the memory-bandwidth limit.

    make bench

Every contender runs in a process of its own; rounds alternate between them. Milliseconds a token are the
difference of a 64-token and a 2-token run, divided by 62, so prompt, call and compile costs drop out.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from bandwidth import read_bandwidth

HERE = pathlib.Path(__file__).parent
PROMPT, SHORT, NEW = 8, 2, 64  # their TF XLA generate fails for one new token
# Weights that a step reads: the blocks, the final norm, and the embedding as the head.
STEP_BYTES = 4 * (12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 50257 * 768)


class Contender:
    def __init__(self, label, python, name, folder, root=HERE.parent, **env):
        self.label, self.ms, self.limits = label, {}, {}
        command = [python, str(root / "benchmarks" / "workers.py"), name, folder, str(PROMPT)]
        env["PYTHONPATH"] = str(root)
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env}
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.process = subprocess.Popen(command, env=env, **pipes)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{label} did not start; run this to see why: {' '.join(command)}")

    def run(self, batch, new_tokens):
        print(json.dumps({"batch": batch, "new_tokens": new_tokens}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.label} died at batch {batch}, {new_tokens} new tokens")
        answer = json.loads(line)
        return answer["seconds"], answer["tokens"]

    def step(self, batch):
        """Milliseconds a step, and the tokens."""
        time.sleep(0.5)  # the threads of whoever ran before spin for a while
        limit = STEP_BYTES / read_bandwidth() * 1e3
        short, _ = self.run(batch, SHORT)
        long, tokens = self.run(batch, NEW)
        self.ms.setdefault(batch, []).append((long - short) / (NEW - SHORT) * 1e3)
        self.limits.setdefault(batch, []).append(limit)
        return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python with benchmarks/peer-requirements.txt installed")
    parser.add_argument("--before", type=pathlib.Path, help="an older checkout of this repository, to run, too")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results" / "decode.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(folder)
        contenders = [
            Contender("keras_xla, TensorFlow", sys.executable, "ours", folder, KERAS_BACKEND="tensorflow"),
            Contender("keras_xla, JAX", sys.executable, "ours", folder, KERAS_BACKEND="jax"),
            Contender("HF transformers 5, PyTorch", sys.executable, "hf-torch", folder),
        ]
        if args.peer:
            contenders.append(Contender("HF transformers 4.57, TF XLA", args.peer, "hf-tf-xla", folder))
        if args.before:
            how = dict(root=args.before.resolve(), KERAS_BACKEND="tensorflow")
            contenders.append(Contender(f"keras_xla at {commit(args.before)}", sys.executable, "ours", folder, **how))
        firsts = {c.label: {b: c.run(b, NEW)[0] for b in args.batches} for c in contenders}
        for c in contenders:
            for b in args.batches:
                c.run(b, SHORT)
        for _ in range(args.rounds):
            for batch in args.batches:
                tokens = [c.step(batch) for c in contenders]
                assert all(t == tokens[0] for t in tokens), "the contenders' tokens differ"
        for c in contenders:
            c.process.stdin.close()
    report(args, contenders, firsts)


def report(args, contenders, firsts):
    limits = [limit for c in contenders for batch in c.limits.values() for limit in batch]
    limit, date = statistics.median(limits), time.strftime("%Y-%m-%d")
    gigabytes = STEP_BYTES / limit / 1e6
    lines = [
        "# Steady greedy decode, GPT-2 124M, float32",
        "",
        f"`make bench`, {date}, commit {commit(HERE)}: {args.rounds} alternating rounds, medians; "
        f"{os.cpu_count()} cores. Prompt of {PROMPT} tokens, {NEW} new ones; all contenders' tokens are equal.",
        f"Limit: {STEP_BYTES / 1e6:.0f} MB of weights a step at {gigabytes:.1f} GB/s, measured before every run: "
        f"{limit:.1f} ms.",
        "",
        "| | batch | ms a step (min - max) | times the limit | keras_xla (TF) is faster by | first call, s |",
        "|---|---|---|---|---|---|",
    ]
    for batch in args.batches:
        for c in contenders:
            ms = c.ms[batch]
            ratio = statistics.median(a / b for a, b in zip(ms, contenders[0].ms[batch], strict=True))
            to_limit = statistics.median(a / b for a, b in zip(ms, c.limits[batch], strict=True))
            spread = f"{statistics.median(ms):.1f} ({min(ms):.1f} - {max(ms):.1f})"
            lines.append(
                f"| {c.label} | {batch} | {spread} | {to_limit:.2f} | {ratio:.2f}x | {firsts[c.label][batch]:.1f} |"
            )
    text = "\n".join(lines) + "\n"
    print(text)
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(text)


def commit(folder):
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def make_checkpoint(folder):
    """GPT-2 124M with random weights, as PyTorch transformers makes them."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(initializer_range=0.1)).save_pretrained(folder)


if __name__ == "__main__":
    main()
