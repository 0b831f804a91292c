"""The fit suite goes on where it stopped, and takes parts of keras_xla away without changing what is computed."""

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.lines import block, rounds
from tests.test_examples import ROOT

SUITE = ROOT / "benchmarks" / "fit_suite"


def run(lines, folder, *options: str) -> subprocess.CompletedProcess:
    """`run.py` on the model `mlp` alone, for default and ours, with these lines in the raw file."""
    raw = folder / "raw.jsonl"
    raw.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, SUITE / "run.py", "--raw", raw, "--models", "mlp", "--contenders", "default", "ours"]
    return subprocess.run([*command, "--long-rounds", "0", *options], capture_output=True, text=True)


def test_a_round_that_is_there_is_not_measured_again(tmp_path):
    done = run(rounds("mlp", block(10, 5)), tmp_path, "--rounds", "1")
    assert done.returncode == 0
    assert done.stderr.count("missing: 0 blocks, about 0.0 h") == 2  # before and after


def test_the_estimate_follows_what_was_measured(tmp_path):
    done = run(rounds("mlp", block(100, 60)), tmp_path, "--rounds", "3", "--estimate")
    assert "short round 2: 1 models x 2 contenders, about 3 min" in done.stderr  # 108 s and 68 s
    assert "missing: 2 blocks, about 0.1 h" in done.stderr


def test_no_round_is_begun_that_would_end_after_the_budget(tmp_path):
    done = run(rounds("mlp", block(100, 60)), tmp_path, "--rounds", "2", "--budget", "100")
    assert "The budget ends here" in done.stderr
    assert len((tmp_path / "raw.jsonl").read_text().splitlines()) == len(block(1, 1))


def test_fits_of_another_length_need_a_file_of_their_own(tmp_path):
    done = run(rounds("mlp", block(10, 5)), tmp_path, "--rounds", "1", "--short", "5")
    assert done.returncode == 1
    assert "has short fits of about 10 s; asked for were 5 s" in done.stderr


@pytest.mark.slow
def test_the_suite_knows_all_models():
    code = "import models, run; assert run.MODELS == list(models.MODELS), run.MODELS"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SUITE)}, check=True)


@pytest.mark.slow
def test_without_xla_and_without_several_steps_a_call_the_losses_are_those_of_plain_keras(tmp_path):
    def worker(contender: str) -> dict:
        env = {**os.environ, "KERAS_BACKEND": "tensorflow", "KERAS_XLA_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, SUITE / "worker.py", "keras_19953", contender, "2", "--steps", "3"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    plain = worker("default")
    for contender in ("ours_graph", "ours_steps"):
        measured = worker(contender)
        assert measured["losses"] == plain["losses"]
        assert "the benchmark asked for it" in measured["report"]
