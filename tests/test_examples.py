"""Every example runs as it stands."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import real_models, reference
from tests.tokenizers import tiny

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.slow


def run(*command, **env):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **env}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_demo():
    out = run(str(EXAMPLES / "demo.py"))
    assert out.count("] ") >= 10 and re.search(r"\d\.\d\d times as fast", out) and "decided" in out
    assert "The capital of France is Paris." in out and "Mia" in out.split("What is the name of my cat?")[1]
    assert out.count("first call") >= 2


def test_fit_predict():
    out = run(str(EXAMPLES / "fit_predict.py"), "20")
    accuracies = [float(x) for x in re.findall(r"test accuracy (\d\.\d+)", out)]
    assert len(accuracies) == 2 and min(accuracies) > 0.9
    assert "decided" in out and out.count("first call") <= 3  # a compilation for each kind of step, at most


def test_tfds_pipeline(tmp_path):
    out = run(str(EXAMPLES / "tfds_pipeline.py"), str(tmp_path))
    assert float(re.search(r"test accuracy (\d\.\d+)", out)[1]) > 0.85
    assert "decided" in out


def test_generate_text():
    out = run(str(EXAMPLES / "generate_text.py"), "--new-tokens", "20")
    assert "The capital of France is Paris." in out
    # Prompts and tokens for batches of 4 and 1; and where the conversation outgrows its cache, at the next size.
    assert re.search(r"17 calls, [456] XLA compilations", out)
    batch, alone = out.split("One question at a time")
    answers = re.findall(r"^  \S.*\n    (.*)", batch, re.MULTILINE)
    assert len(answers) == 3 and answers == re.findall(r" greedy:\n    (.*)", alone)


def test_structured_answers():
    out = run(str(EXAMPLES / "structured_answers.py"))
    labels = re.findall(r"^  (good|bad ) by \d", out, re.MULTILINE)
    made = ast.literal_eval(re.search(r"(\[.*\]) \(", out)[1])
    assert [label.strip() for label in labels] == made == ["good", "bad", "good", "bad"]
    people = [ast.literal_eval(each) for each in re.findall(r"^  (\{.*\})  \(mean", out, re.MULTILINE)]
    assert [(person["year_of_birth"], person["profession"]) for person in people] == [
        (1867, "physicist"),
        (1912, "mathematician"),
    ]


def test_translate_tfds():
    out = run(str(EXAMPLES / "translate_tfds.py"), "--model", str(real_models.flan_t5_small()))
    assert "The house is wonderful.\n    Das Haus ist wunderbar." in out
    assert "9 sentences, 4 XLA compilations" in out  # the source and the tokens, for batches of 4 and 1


def test_transcribe():
    files = [str(real_models.speech())] * 2
    out = run(str(EXAMPLES / "transcribe.py"), *files, "--model", str(real_models.whisper_tiny_en()), "--srt")
    assert out.count("And so my fellow Americans") == 2 and out.count("00:00:00,000 --> ") == 2


@pytest.fixture
def tiny_gpt2(tmp_path):
    folder = reference.folder("gpt2", tmp_path)
    tiny().save_pretrained(folder)
    return folder


def test_finetune_gpt2(tiny_gpt2):
    out = run(str(EXAMPLES / "finetune_gpt2.py"), "--model", tiny_gpt2, "--epochs", "3")
    losses = [float(x) for x in re.findall(r"loss: (\d\.\d+)\s*$", out, re.MULTILINE)]
    assert losses[-1] < losses[0]
    assert out.count(": 10 green") == 3 and out.count("[advance") == 1  # three epochs of new weights, one executable


def test_migrate_after(tiny_gpt2):
    assert run(str(EXAMPLES / "migrate_after.py"), tiny_gpt2).count(" -> ") == 3
