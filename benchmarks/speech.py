"""Speech to text with whisper-tiny.en: us, faster-whisper and PyTorch transformers, seconds a transcription.

    python benchmarks/speech.py --checkpoints DIR --peer .venv-peer/bin/python

DIR holds `whisper-tiny.en` and `jfk.wav`, 11 seconds that are repeated for 30 seconds and for 3 minutes. Every
contender runs in a process of its own; rounds alternate between them. Greedy, one file at a time, without a second try
of a window that looks wrong.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
import raw_lines
import soundfile
from contender import Contender
from decode import PAUSE
from facts import commit

HERE = pathlib.Path(__file__).parent
RAW = HERE / "results" / "speech.jsonl"
LENGTHS = (30, 180)  # seconds
# (label, worker, backend of Keras, in the peers' environment)
CONTENDERS = (
    ("keras_xla, TensorFlow", "ours", "tensorflow", False),
    ("keras_xla, JAX", "ours", "jax", False),
    ("HF transformers 5, PyTorch", "hf-torch", None, False),
    ("faster-whisper", "faster-whisper", None, True),
    ("keras_xla int8, TensorFlow", "ours-int8", "tensorflow", False),
    ("keras_xla int8, JAX", "ours-int8", "jax", False),
    ("faster-whisper int8", "faster-whisper-int8", None, True),
)


def measure(args):
    """A line for each contender, length and round."""
    lines, model = [], str(args.checkpoints / "whisper-tiny.en")
    with tempfile.TemporaryDirectory() as folder:
        paths = {seconds: repeated(args.checkpoints / "jfk.wav", seconds, folder) for seconds in LENGTHS}
        contenders = [
            Contender(label, args.peer if peer else sys.executable, "speech_workers.py", worker, model, backend=backend)
            for label, worker, backend, peer in CONTENDERS
            if args.peer or not peer
        ]
        jobs = [(c, dict(path=path, seconds=seconds)) for seconds, path in paths.items() for c in contenders]
        first = {(c.label, job["seconds"]): c.ask(**job)["seconds"] for c, job in jobs}
        for number in range(args.rounds):
            for c, job in jobs:
                time.sleep(PAUSE)
                answer, seconds = c.ask(**job), job["seconds"]
                line = dict(label=c.label, length=seconds, round=number, seconds=answer["seconds"])
                lines.append({**line, "first": first[c.label, seconds], "text": answer["text"]})
        for c in contenders:
            c.close()
    when = dict(date=time.strftime("%Y-%m-%d"), commit=commit(HERE), cores=os.cpu_count())
    return [{**line, **when} for line in lines]


def repeated(path, seconds, folder):
    """The path of a file that is as long as this, of copies of another."""
    sound, rate = soundfile.read(path, dtype="float32")
    made = pathlib.Path(folder) / f"{seconds}.wav"
    soundfile.write(made, np.resize(sound, seconds * rate), rate)
    return str(made)


def report(lines):
    """The table of raw lines."""
    rounds = 1 + max(line["round"] for line in lines)
    text = [
        "# Speech to text, whisper-tiny.en",
        "",
        f"`python benchmarks/speech.py`, {lines[0]['date']}, commit {lines[0]['commit']}, {lines[0]['cores']} cores: "
        f"{rounds} alternating rounds, medians. One file at a time, greedy. Those that make other text than keras_xla "
        "on TensorFlow are marked: they may take more or fewer steps.",
        "",
        "| | sound, s | seconds (min - max) | times keras_xla (TF) of these weights | first call, s | same text |",
        "|---|---|---|---|---|---|",
    ]
    for length in LENGTHS:
        of = {}
        for line in lines:
            if line["length"] == length:
                of.setdefault(line["label"], []).append(line)
        said = of["keras_xla, TensorFlow"][0]["text"]
        for label, each in of.items():
            ours = of["keras_xla int8, TensorFlow" if "int8" in label else "keras_xla, TensorFlow"]
            ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(each, ours, strict=True))
            took = [line["seconds"] for line in each]
            spread = f"{statistics.median(took):.2f} ({min(took):.2f} - {max(took):.2f})"
            same = "yes" if plain(each[0]["text"]) == plain(said) else "no"
            text.append(f"| {label} | {length} | {spread} | {ratio:.2f}x | {each[0]['first']:.1f} | {same} |")
    return "\n".join(text) + "\n"


def plain(text):
    """The words alone: other spaces and marks are no other text."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--peer", help="a Python with benchmarks/peer-requirements.txt installed")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    lines = measure(args)
    raw_lines.write(RAW, lines)
    raw_lines.publish(RAW, report(lines))


if __name__ == "__main__":
    main()
