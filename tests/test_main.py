"""python -m keras_xla: a script runs as Python would run it, and a summary says what XLA did."""

import dataclasses
import json
import os
import pathlib
import py_compile
import re
import subprocess
import sys
import textwrap
import time

import keras
import pytest

from keras_xla import __main__ as main
from keras_xla.training.decide.decisions import Decisions, MeasurementKey, Times

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
    "builtins": "print(__builtins__, __builtins__.len)",
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
    "annotations": "print(__annotations__)",
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


def test_a_path_is_taken_as_the_system_takes_it(python, tmp_path):
    """Behind a link, `..` is the folder that the link leads to."""
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "other" / "deep")
    (tmp_path / "script.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "other" / "script.py").write_text("import sys; print(sys.argv, sys.path[0], __file__); 1 / 0")
    for path in ("link/../script.py", "./other/../other/script.py"):
        expected, made = python(path, "a"), python("-m", "keras_xla", "--quiet", "--", path, "a")
        assert (made.stdout, made.stderr, made.returncode) == (expected.stdout, expected.stderr, 1)


@pytest.mark.parametrize("end", ["", "1 / 0", "import sys; sys.exit('no data')"], ids=["end", "error", "message"])
def test_in_one_file_the_scripts_own_output_comes_first(end, tmp_path):
    """It is not written at once there. Python writes it before a traceback; the summary comes behind it, too."""
    (tmp_path / "script.py").write_text(f"print('loss 0.1')\n{end}")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONUNBUFFERED", None)
    for command in (["-m", "keras_xla", "script.py"], ["-m", "keras_xla", "--quiet", "script.py"]):
        with (tmp_path / "log").open("w+") as log:
            subprocess.run(
                [sys.executable, *command], stdout=log, stderr=subprocess.STDOUT, env=env, cwd=tmp_path, check=False
            )
        assert (tmp_path / "log").read_text().startswith("loss 0.1\n")


def test_a_script_may_come_through_a_pipe_or_compiled(tmp_path):
    told = "import sys; print(sys.argv, sys.path[0] == '', '__file__' in globals(), __name__); x = 1 / 0"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def done(*command, **more):
        made = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, cwd=tmp_path, **more)
        return made.returncode, made.stdout, made.stderr

    assert done("-m", "keras_xla", "--quiet", "-", "a", input=told) == done("-", "a", input=told)
    if os.path.exists("/dev/stdin"):
        assert done("-m", "keras_xla", "--quiet", "/dev/stdin", "a", input="print(7)")[:2] == (0, "7\n")
    (tmp_path / "script.py").write_text(told)
    compiled = py_compile.compile(tmp_path / "script.py", cfile=tmp_path / "script.pyc")
    assert done("-m", "keras_xla", "--quiet", compiled, "a") == done(compiled, "a")


def test_modules_and_folders_run_too(python, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text(
        "import os, sys; print([os.path.abspath(sys.argv[0]), *sys.argv[1:]], __name__, __package__, sys.path[0])"
    )
    for arguments in (("-m", "pkg", "--flag", "-m"), ("-mpkg", "one", "--flag"), ("pkg", "--flag")):
        expected, made = python(*arguments), python("-m", "keras_xla", *arguments)
        assert (made.stdout, made.returncode) == (expected.stdout, 0)
        assert "the script imported neither Keras nor TensorFlow" in made.stderr


def test_the_console_script_does_as_the_module(python, tmp_path):
    """As pip writes it, in a folder of its own, which is not where modules come from."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "keras-xla").write_text(
        "import sys\nfrom keras_xla.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())"
    )
    (tmp_path / "fails.py").write_text("import sys\nprint(sys.path[0])\nraise ValueError('mine')")
    for arguments in (("-m", "fails"), ("fails.py",)):
        expected, made = python(*arguments), python(pathlib.Path("bin", "keras-xla"), "--quiet", *arguments)
        assert made.stdout == expected.stdout
        shown = [text.partition("fails.py")[2] for text in (made.stderr, expected.stderr)]
        assert shown[0] == shown[1] and "bin/keras-xla" not in made.stderr and "__main__.py" not in made.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a script to run is missing"),
        (("-m",), "a script to run is missing"),
        (("nothing.py",), "there is no file 'nothing.py'"),
        (("--report", "no/r.json", "x.py"), "--report received 'no/r.json'; there is no folder"),
        (("--report", ".", "x.py"), "--report received '.', which is a folder"),
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
        assert "Keras' own function ran these steps" in done.stderr
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


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras' XLA switch is TensorFlow's")
def test_nothing_is_compiled_where_it_is_off(python, tmp_path):
    (tmp_path / "script.py").write_text(ON_TENSORFLOW)
    done = python("-m", "keras_xla", "--jit-compile=off", "--report=r.json", "script.py")
    assert done.returncode == 0
    assert "line: enabled with jit_compile=False, and plain Keras does it" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["jit_compile"] is False and report["compilations"] == []


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


def test_main_is_the_module_until_the_very_end(python, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "late.py").write_text("")
    told = (
        "import atexit, pickle, sys\nclass State: pass\n"
        "atexit.register(lambda: print(pickle.loads(pickle.dumps(State())).__module__, sys.argv[1:], __spec__.name))\n"
    )
    (tmp_path / "pkg" / "__main__.py").write_text(told + "atexit.register(lambda: __import__('late'))\n")
    (tmp_path / "pkg" / "train.py").write_text(told)
    for arguments in (("-m", "pkg.train", "a"), ("pkg", "a")):
        expected, made = python(*arguments), python("-m", "keras_xla", "--quiet", *arguments)
        assert (made.stdout, made.stderr, made.returncode) == (expected.stdout, expected.stderr, 0)


def test_a_place_for_messages_that_takes_none_changes_no_exit_code(python, tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys\nclass Closed:\n"
        "    def write(self, text): raise ValueError('I/O operation on closed file.')\n"
        "    def flush(self): pass\n"
        "sys.stderr = Closed()\nsys.exit(3)"
    )
    assert python("-m", "keras_xla", "script.py").returncode == 3


@pytest.mark.parametrize("stderr", ["None", "open('log', 'w')"])
def test_a_script_that_closes_stderr_has_its_own_exit_code(stderr, python, tmp_path):
    (tmp_path / "script.py").write_text(
        f"import sys\nsys.stderr = {stderr}\nsys.stderr and sys.stderr.close()\nsys.exit(3)"
    )
    done = python("-m", "keras_xla", "script.py")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 3)


def test_a_report_that_cannot_be_written_hides_nothing(python, tmp_path):
    (tmp_path / "script.py").write_text("import os\nos.mkdir('r.json')\nraise SystemExit('mine')")
    done = python("-m", "keras_xla", "--report", "r.json", "script.py")
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "mine"
    assert "r.json could not be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the page shows a report of TensorFlow")
@pytest.mark.slow
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


KERAS_AT_LAST = {
    "asked whether it is there": """
        import importlib.util
        for name in ("keras", "tensorflow", "keras"):
            assert importlib.util.find_spec(name) is not None
        assert not {"keras", "tensorflow"} & set(sys.modules)  # asking imports nothing
        import keras
    """,
    "asked for a part of it": """
        import importlib.util
        assert importlib.util.find_spec("keras.layers") is not None
        import keras
    """,
    "loaded again": """
        import importlib
        import keras
        keras = importlib.reload(importlib.reload(keras))
    """,
    "imported in a thread, while others ask": """
        import importlib, importlib.util, threading
        threads = [threading.Thread(target=importlib.import_module, args=("keras",)) for _ in range(2)]
        threads += [threading.Thread(target=importlib.util.find_spec, args=("keras",)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        import keras
    """,
    "loaded lazily": """
        import importlib.util
        def lazily(name):
            spec = importlib.util.find_spec(name)
            spec.loader = importlib.util.LazyLoader(spec.loader)
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        keras = lazily("keras")
        import colorsys  # which does not load it
        os.environ["KERAS_BACKEND"] = "jax"
    """,
    "made of its spec": """
        import importlib.util
        spec = importlib.util.find_spec("keras")
        sys.modules["keras"] = keras = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(keras)
        assert "exec_module" not in vars(spec.loader)  # as it was
    """,
    "imported after it failed once": """
        sys.modules["keras.layers"] = None
        try:
            import keras
        except ImportError:
            pass
        for name in [name for name in sys.modules if name.split(".")[0] == "keras"]:
            del sys.modules[name]
        import keras
    """,
    "found by a finder of the script's own": """
        import importlib.machinery, importlib.util
        class First:
            asked = False
            def find_spec(self, name, path=None, target=None):
                if name != "keras" or self.asked:
                    return None
                self.asked = True
                return importlib.util.find_spec(name)
        sys.meta_path.insert(0, First())
        import keras
    """,
    "imported past every finder but one": """
        import importlib.machinery
        sys.meta_path.insert(0, importlib.machinery.PathFinder)
        import keras
        del sys.meta_path[0]
        import colorsys
    """,
}


@pytest.mark.parametrize("name", KERAS_AT_LAST)
@pytest.mark.quick("finder of the", "asked whether", "in a thread")
def test_keras_may_be_imported_in_any_way(name, python, tmp_path):
    last = "keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name='line').compile('sgd', 'mse')"
    script = textwrap.dedent(KERAS_AT_LAST[name])
    (tmp_path / "script.py").write_text(f"import os, sys\n{script}\n{last}")
    backend = "" if "KERAS_BACKEND" in script else "jax"  # which is imported faster
    done = python("-m", "keras_xla", "script.py", KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert "line: compiled, and never run" in done.stderr


def test_asking_alone_is_no_import(python, tmp_path):
    (tmp_path / "script.py").write_text("import importlib.util; print(importlib.util.find_spec('keras').name)")
    done = python("-m", "keras_xla", "script.py")
    assert done.stdout == "keras\n"
    assert "the script imported neither Keras nor TensorFlow" in done.stderr


def test_decisions_are_listed_and_removed(python, tmp_path):
    empty = python("-m", "keras_xla", "--decisions")
    assert (empty.returncode, empty.stderr) == (0, "")
    assert empty.stdout.startswith("nothing has been measured yet")
    memory = Decisions(tmp_path / "cache" / "decisions")
    key = MeasurementKey("f00d", "train", "x: (8, 4) float32", "2 cores of a CPU", "keras 3", "threads=(0, 0)")
    memory.put(key, Times(0.01, "xla", 0.004, 1.5, time=time.time() - 7200), "line.train_step", "xla")
    failed = Times(0.01, "xla", failed="no kernel for Tangle")
    memory.put(dataclasses.replace(key, graph="beef"), failed, "knot.train_step", "graph")
    for option in ("--decisions", "--clear-decisions"):
        told = python("-m", "keras_xla", option, COLUMNS="200").stdout
        assert re.search(r"line\.train_step +xla +10\.00 +4\.00 +1\.5 +2 h +x: \(8, 4\) float32", told)
        assert re.search(r"knot\.train_step +graph +10\.00 +failed +- +\d+ s", told)
        assert "no kernel for Tangle" in told and "2 cores of a CPU" in told
    assert "removed 2 from" in told and memory.all() == []
    assert python("-m", "keras_xla", "--decisions", "script.py").returncode == 2


def test_a_list_that_nobody_reads_to_its_end_and_a_folder_that_cannot_be_emptied(monkeypatch, tmp_path, capsys):
    def fails(self):
        raise PermissionError("read-only")

    monkeypatch.setattr(Decisions, "clear", fails)
    monkeypatch.setattr(sys, "argv", ["keras_xla", "--clear-decisions"])
    with pytest.raises(SystemExit) as error:
        main.main()
    assert error.value.code == 2 and "could not remove what is in" in capsys.readouterr().err
    script = "import os, sys; os.close(sys.stdin.fileno())"  # a reader that leaves
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as reader:
        reader.wait()
        env = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_XLA_CACHE": str(tmp_path)}
        writes = [sys.executable, "-m", "keras_xla", "--decisions"]
        done = subprocess.run(writes, stdout=reader.stdin, stderr=subprocess.PIPE, env=env, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
