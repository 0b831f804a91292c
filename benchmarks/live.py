"""Live Hugging Face TensorFlow models: eager, their XLA, and ours, side by side; greedy and with 4 beams.

    make bench-live
    python benchmarks/live.py --families gpt2 t5 --beams 4

Runs in the environment of `make transformers4`. Every model has its published size and random weights. Each prompt
length is called once for the first time and then `--rounds` times, the contenders taking turns. Their XLA is used as
their guide says: `tf.function(model.generate, jit_compile=True)`, prompts padded to a multiple of 8. The limit is what
the new tokens take if every weight of the decoder is read once for each, at the bandwidth measured just before.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import raw_lines
from bandwidth import read_bandwidth
from facts import measured, told

RAW = pathlib.Path(__file__).parent / "results" / "live.jsonl"
LENGTHS = (5, 12, 21, 30, 45)
SECONDS = (2, 5, 11, 20, 30)
NEW = 20
FAMILIES = {
    "gpt2": "GPT-2 124M",
    "opt": "OPT 125M",
    "t5": "T5 small (60M)",
    "whisper": "Whisper tiny (39M)",
}


def make(family):
    """The TensorFlow model, with weights large enough for distinct logits."""
    import tensorflow as tf
    import transformers as hf

    tf.random.set_seed(0)
    ids = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if family == "gpt2":
        model = hf.TFGPT2LMHeadModel(hf.GPT2Config(**ids))
    elif family == "opt":
        model = hf.TFOPTForCausalLM(hf.OPTConfig(**ids))
    elif family == "t5":
        model = hf.TFT5ForConditionalGeneration(hf.T5Config(**ids, decoder_start_token_id=0))
    else:
        config = hf.WhisperConfig(vocab_size=51864, bos_token_id=50256, eos_token_id=50256, pad_token_id=50256)
        model = hf.TFWhisperForConditionalGeneration(config)
    model.build_in_name_scope()
    for variable in model.weights:
        if len(variable.shape) == 2:
            variable.assign_add(tf.random.normal(variable.shape, stddev=0.03))
    settings = model.generation_config
    if family == "whisper":
        settings.decoder_start_token_id, settings.no_timestamps_token_id = 50257, 50362
        settings.forced_decoder_ids, settings.is_multilingual = [[1, 50362]], False
        settings.return_timestamps = False
    else:
        settings.eos_token_id = None  # everybody makes all the tokens
    return model


def inputs_of(family):
    """What is read at each length: their padded inputs and ours."""
    import numpy as np

    rng = np.random.default_rng(0)
    if family == "whisper":
        return [
            (f"{s} s", *(2 * [{"input_features": rng.normal(0, 0.3, (1, 80, 3000)).astype("float32")}]))
            for s in SECONDS
        ]
    made = []
    for length in LENGTHS:
        row, wide = rng.integers(5, 30000, length).astype("int32"), -(-length // 8) * 8
        ids, mask = np.zeros((1, wide), "int32"), np.zeros((1, wide), "int32")
        where = slice(wide - length, None) if family in ("gpt2", "opt") else slice(length)
        ids[0, where], mask[0, where] = row, 1
        made.append((f"{length} tokens", {"input_ids": ids, "attention_mask": mask}, row[None]))
    return made


def worker(family, beams, rounds, with_eager):
    import tensorflow as tf

    import keras_xla

    model = make(family)
    read = sum(4 * math.prod(variable.shape) for variable in model.weights if "encoder" not in variable.name)
    limit = NEW * read / read_bandwidth()
    xla = tf.function(model.generate, jit_compile=True)
    options = dict(max_new_tokens=NEW, num_beams=beams)
    made = NEW - (family == "whisper")  # there theirs counts the second token of the prompt, which it forces
    layer = keras_xla.XLAGenerationLayer(model, max_new_tokens=made, num_beams=beams)

    def theirs(run):
        def call(padded, _):
            tensors = {name: tf.constant(value) for name, value in padded.items()}
            return run(**tensors, **options).numpy()[0, -made:].tolist()

        return call

    def ours(_, own):
        return layer.generate(own)["sequences"][0].tolist()

    contenders = {"their XLA": theirs(xla), "keras_xla": ours}
    if with_eager:
        contenders["eager"] = theirs(model.generate)
    for label, padded, own in inputs_of(family):
        times, tokens = {name: [] for name in contenders}, {}
        for attempt in range(1 + rounds):
            for name, call in contenders.items():
                if name == "eager" and attempt > 1:
                    continue
                start = time.perf_counter()
                tokens[name] = call(padded, own)
                times[name].append(time.perf_counter() - start)
        for name in contenders:
            row = dict(family=family, beams=beams, length=label, name=name, first=times[name][0])
            row["later"], row["same"] = times[name][1:], tokens[name] == tokens["keras_xla"]
            print(json.dumps(row), flush=True)
    traces = {"their XLA": xla.experimental_get_tracing_count(), "keras_xla": layer.trace_count}
    print(json.dumps(dict(family=family, beams=beams, traces=traces, limit=limit)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-eager", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--raw", type=pathlib.Path, default=RAW, help="the raw lines; the table stands beside them")
    args = parser.parse_args()
    if args.worker:
        worker(args.families[0], args.beams[0], args.rounds, not args.no_eager)
        return
    when, lines = measured("transformers", "tensorflow", "tf-keras", "keras"), []
    for family in args.families:
        for beams in args.beams:
            command = [sys.executable, __file__, "--worker", "--families", family, "--beams", str(beams)]
            command += ["--rounds", str(args.rounds)] + ["--no-eager"] * args.no_eager
            env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            lines += [{**json.loads(line), **when} for line in done.stdout.splitlines() if line.startswith("{")]
            raw_lines.write(args.raw, lines)  # as far as it has come: the whole takes half an hour
    raw_lines.publish(args.raw, report(lines))


def report(lines: list[dict]) -> str:
    """The page of raw lines."""
    timed = [line for line in lines if "name" in line]
    rounds = max(len(line["later"]) for line in timed)
    text = [
        "# Live Hugging Face TensorFlow models: eager, their XLA, keras_xla",
        "",
        f"`make bench-live`, {told(lines[0])}; float32, batch 1, {NEW} new tokens. Seconds a call: the first, and the "
        f"median of {rounds} later ones (eager: 1), in which their XLA and keras_xla take turns. Faster by: the median "
        "of the ratios of these rounds, in brackets the lowest and the highest. Prompts are padded to 8, 16, 24, 32 "
        "and 48 tokens for their XLA, as their guide says.",
    ]
    for family in dict.fromkeys(line["family"] for line in lines):
        text += ["", f"### {FAMILIES[family]}", ""]
        text += [
            "| beams | prompt | eager | their XLA, first | later | keras_xla, first | later | faster by | same tokens |"
        ]
        text += ["|---|---|---|---|---|---|---|---|---|"]
        mine = [line for line in lines if line["family"] == family]
        for beams in dict.fromkeys(line["beams"] for line in mine):
            for row in (line for line in mine if line["beams"] == beams and "traces" in line):
                text += rows([line for line in timed if (line["family"], line["beams"]) == (family, beams)])
                counts = ", ".join(f"{name} {n}" for name, n in row["traces"].items())
                text += [f"| {beams} | compilations | | {counts} | | | | | |"]
                text += [f"| {beams} | limit: reading the weights | {row['limit']:.3f} | | | | | | |"]
    return "\n".join(text) + "\n"


def rows(timed: list[dict]) -> list[str]:
    """A row for each prompt."""
    text = []
    for length in dict.fromkeys(line["length"] for line in timed):
        by = {line["name"]: line for line in timed if line["length"] == length}
        theirs, ours = by["their XLA"], by["keras_xla"]
        cells = [ours["beams"], length, f"{by['eager']['later'][0]:.2f}" if "eager" in by else "-"]
        for line in (theirs, ours):
            cells += [f"{line['first']:.1f}", f"{statistics.median(line['later']):.3f}"]
        ratios = [a / b for a, b in zip(theirs["later"], ours["later"], strict=True)]
        cells += [f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} - {max(ratios):.2f})"]
        text.append(f"| {' | '.join(map(str, [*cells, 'yes' if theirs['same'] else 'NO']))} |")
    return text


if __name__ == "__main__":
    main()
