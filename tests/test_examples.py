"""Every example runs as it stands, and every Python snippet of the README."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.slow


def run(*command, **env):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **env}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_fit_predict():
    out = run(str(EXAMPLES / "fit_predict.py"))
    accuracies = [float(x) for x in re.findall(r"test accuracy (\d\.\d+)", out)]
    assert len(accuracies) == 2 and min(accuracies) > 0.95
    assert out.count(".train_step") == 2  # the partial last batch is the one extra


def test_tfds_pipeline(tmp_path):
    out = run(str(EXAMPLES / "tfds_pipeline.py"), str(tmp_path))
    assert float(re.search(r"test accuracy (\d\.\d+)", out)[1]) > 0.85
    assert out.count(".train_step") == 2


def test_generate_text():
    out = run(str(EXAMPLES / "generate_text.py"))
    assert "The capital of France is Paris." in out
    assert "14 calls, 3 XLA compilations" in out


def test_readme_snippets(tmp_path):
    text = (ROOT / "README.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) >= 4
    script = tmp_path / "readme.py"
    script.write_text("\n\n".join(snippets))
    run(str(script), README_MODEL=str(EXAMPLES), PYTHONPATH=f"{ROOT}:{EXAMPLES}")
