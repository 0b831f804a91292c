"""python -m keras_xla: a script runs as Python would run it, and a summary says what XLA did."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import keras
import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture
def python(tmp_path):
    """`python(*arguments)`: runs it in a folder of its own."""

    def run(*arguments, **env):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **env}
        env["KERAS_XLA_CACHE"] = str(tmp_path / "cache")
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300, check=False)

    return run


WITHOUT_KERAS = {
    "names": """
        import sys, __main__
        from helper import VALUE
        print(sys.argv, sys.path[0], __name__, __file__, __doc__, __spec__, __package__, VALUE)
        print(__main__.__dict__ is globals(), sorted({*globals(), "__annotations__"}))
    """,
    "pickle": """
        import pickle, multiprocessing
        class Thing:
            pass
        def work(n):
            return n + 1
        if __name__ == "__main__":
            print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [1, 2]))
    """,
    "exit": "import sys; sys.exit(3)",
    "message": "import sys; sys.exit('no data')",
    "error": """
        def inner():
            raise KeyError("x")
        def outer():
            try:
                inner()
            except KeyError as error:
                raise ValueError("y") from error
        outer()
    """,
    "syntax": "x = (",
    "fork": """
        import os, sys
        if os.fork() == 0:
            sys.exit(1)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "interrupt": "raise KeyboardInterrupt",
    "hook": "import sys; sys.excepthook = lambda *args: print('hook', args[1]); 1 / 0",
    "atexit": "import atexit; atexit.register(print, 'bye'); value = 1; atexit.register(lambda: print(value))",
}


@pytest.mark.parametrize("name", WITHOUT_KERAS)
def test_output_traceback_and_exit_code_are_those_of_python(name, python, tmp_path):
    """Byte for byte; these scripts import no Keras, and so nothing of it is imported."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("VALUE = 5")
    script = pathlib.Path("sub", "script.py")
    (tmp_path / script).write_text('"""The script."""\n' + textwrap.dedent(WITHOUT_KERAS[name]))
    arguments = (script, "one", "--quiet", "-m", "two")  # the script's, though they look like ours
    expected, made = python(*arguments), python("-m", "keras_xla", "--quiet", *arguments)
    assert (made.stdout, made.stderr, made.returncode) == (expected.stdout, expected.stderr, expected.returncode)


def test_modules_and_folders_run_too(python, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text(
        "import os, sys; print([os.path.abspath(sys.argv[0]), *sys.argv[1:]], __name__, __package__, sys.path[0])"
    )
    for arguments in (("-m", "pkg", "--flag", "-m"), ("pkg", "--flag")):
        expected, made = python(*arguments), python("-m", "keras_xla", *arguments)
        assert (made.stdout, made.returncode) == (expected.stdout, 0)
        assert "the script imported neither Keras nor TensorFlow" in made.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a script to run is missing"),
        (("-m",), "a script to run is missing"),
        (("nothing.py",), "there is no file 'nothing.py'"),
        (("--report", "no/r.json", "x.py"), "--report received 'no/r.json'; there is no folder"),
        (("--jit-compile", "yes", "x.py"), "invalid choice: 'yes'"),
        (("--repor", "r.json", "x.py"), "unrecognized arguments"),
    ],
)
def test_wrong_command_lines(arguments, message, python, tmp_path):
    (tmp_path / "x.py").write_text("")
    done = python("-m", "keras_xla", *arguments)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


CHOSEN_IN_THE_SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "{backend}"
import numpy as np
import keras
print(keras.backend.backend())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="line")
model.compile("sgd", "mse")
print(model.predict(np.ones((2, 4)), verbose=0).shape)
"""


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_the_script_chooses_the_backend(backend, python, tmp_path):
    """Also one without XLA, with which the script runs as it does without us."""
    (tmp_path / "script.py").write_text(CHOSEN_IN_THE_SCRIPT.format(backend=backend))
    done = python("-m", "keras_xla", "--report", "r.json", "script.py", KERAS_BACKEND="")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{backend}\n(2, 1)\n"
    report = json.loads((tmp_path / "r.json").read_text())
    assert done.stderr.count("keras_xla: script.py took") == 1
    if backend == "jax":
        assert report["backend"] == "jax" and report["models"][0]["model"] == "line"
        assert [event["name"] for event in report["compilations"]] == ["line.predict_step"]
        assert "Keras' own function runs these steps" in done.stderr
    else:
        assert "received the Keras backend 'numpy'" in report["problem"]
        assert "it stayed off: " in done.stderr


ON_TENSORFLOW = """
from keras_xla import explain  # before Keras
import tensorflow as tf
import numpy as np
import keras

def model(name, last):
    made = keras.Sequential([keras.Input((4,)), last], name=name)
    made.compile("sgd", "mse")
    return made

@tf.function
def double(x):
    return x * 2

x = np.ones((8, 4), "float32")
model("line", keras.layers.Dense(1)).fit(x, x[:, :1], verbose=0)
for _ in range(3):
    double(x)
texts = keras.Sequential([keras.Input((1,), dtype="string"), keras.layers.Hashing(8, name="hashed")], name="texts")
texts.compile("sgd", "mse")
"""


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras' XLA switch is TensorFlow's")
def test_the_summary_tells_what_was_done_also_after_an_error(python, tmp_path):
    (tmp_path / "script.py").write_text(ON_TENSORFLOW)
    done = python("-m", "keras_xla", "--jit-compile=on", "--report=r.json", "script.py")
    assert done.returncode == 1 and done.stdout == ""
    summary, traceback = done.stderr.split("Traceback (most recent call last):\n")
    assert re.search(r"keras_xla: script\.py took \d+\.\d s\nline: jit_compile=True on tensorflow\n", summary)
    assert "double: tf.function\n  xla: jit_compile=True [x: (8, 4) float32]" in summary
    assert "in 2 XLA compilations" in summary
    assert traceback.startswith(f'  File "{tmp_path / "script.py"}", line 21, in <module>')
    assert "hashed (Hashing)" in traceback
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["command"], report["jit_compile"], report["backend"]) == (["script.py"], True, "tensorflow")
    assert [event["name"] for event in report["compilations"]] == ["line.train_step", "double"]
    # The first call traced, the second was timed, and the third compiled.
    assert report["functions"][0]["timed"].keys() == {"graph"}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the page shows a report of TensorFlow")
def test_the_page_shows_what_the_command_prints_and_every_option(python, tmp_path):
    page = (ROOT / "docs" / "command_line.md").read_text()
    (_, script), (_, command), (_, shown), *_ = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(script)
    done = python(*command.split()[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss 0.")

    def timeless(text):
        return re.sub(r"\d+\.\d s", "N s", text)

    assert timeless(shown) in timeless(done.stderr)
    (row,) = re.findall(r"`--report FILE.json` \|(.*)", page)
    assert set(re.findall(r"`(\w+)`", row)) <= json.loads((tmp_path / "report.json").read_text()).keys()
    described = set(re.findall(r"^\| `(--?[a-z-]+)", page, re.MULTILINE))
    assert described == set(
        re.findall(r"^  (--?[a-z-]+)", python("-m", "keras_xla", "--help").stdout, re.MULTILINE)
    ) - {"-h"}
