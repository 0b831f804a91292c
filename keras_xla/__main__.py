"""`python -m keras_xla script.py`: runs a Keras script as it is, with XLA where that is faster.

Nothing is imported but the standard library until the script imports Keras or TensorFlow: what it sets before, such as
`os.environ["KERAS_BACKEND"]`, counts.
"""

import argparse
import builtins
import contextlib
import importlib.machinery
import importlib.metadata
import io
import itertools
import json
import os
import pathlib
import pkgutil
import platform
import runpy
import sys
import threading
import time
import types
import zipfile
from collections.abc import Callable
from typing import Any

from keras_xla import troubleshooting
from keras_xla.private import python
from keras_xla.troubleshooting import OPTION

_LIBRARIES = {"keras": "Model", "tensorflow": "function"}  # what each has once all of it has run
SWITCHES: dict[str, bool | str] = {"auto": "auto", "on": True, "off": False}
_OURS = (__file__, python.__file__, runpy.__file__, "<frozen runpy>")


def main() -> None:
    """Run what the command line says."""
    parser = _parser()
    options = parser.parse_args()
    module = options.module[0] if options.module else None
    command = [*options.module, *options.script] if module else options.script  # `-mname` leaves the arguments there
    if module is None and command[:1] == ["--"]:  # what ends Python's own options, too
        command = command[1:]
    if options.troubleshoot is not None:
        _tell_cause(parser, options)
        return
    if options.decisions or options.clear_decisions:
        if command:
            parser.error(f"--decisions and --clear-decisions run no script; they received {' '.join(command)!r}")
        _tell_decisions(parser, options.clear_decisions)
        return
    if not command:
        parser.error("a script to run is missing: python -m keras_xla [options] script.py [arguments]")
    if module is None and command[0] != "-" and not os.path.exists(command[0]):
        parser.error(f"there is no file {command[0]!r}")
    report = pathlib.Path(options.report).absolute() if options.report else None
    if report and not report.parent.is_dir():
        parser.error(f"--report received {options.report!r}; there is no folder {str(report.parent)!r}")
    if report and report.is_dir():
        parser.error(f"--report received {options.report!r}, which is a folder; it expects the name of a file")
    switch = Switch(SWITCHES[options.jit_compile])
    begun, process = time.perf_counter(), os.getpid()
    try:
        if module is None:
            _run_script(command)
        else:
            _run_module(command)
    except BaseException:
        _hide_frames(sys._getframe(1).f_code.co_filename)
        raise
    finally:
        with contextlib.suppress(Exception):  # it may be closed, or None
            sys.stdout.flush()  # before a traceback, and before the summary, as Python does at the end of a script
        if os.getpid() == process:  # not in what the script has forked
            _tell(switch, command, time.perf_counter() - begun, report, options.quiet)


class _Version(argparse.Action):
    """Prints the versions of the package and of those that it works with."""

    def __call__(self, parser, namespace, values, option_string=None):
        found = importlib.metadata.packages_distributions()  # tensorflow may come as tensorflow-cpu, say
        modules = "keras", "tensorflow", "jax", "transformers", "keras_hub"
        names = dict.fromkeys(name for module in modules for name in found.get(module, []))
        with_version = []
        for name in ("keras-xla", *names):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # it was never installed
                with_version.append(f"{name} {importlib.metadata.version(name)}")
        print(", ".join([*with_version, f"Python {platform.python_version()}, {platform.platform()}"]))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m keras_xla",
        allow_abbrev=False,
        usage="%(prog)s [options] (script.py | -m module) [arguments] | --decisions | --clear-decisions\n"
        f"       | {OPTION} [what]",
        description="Run a Keras script as it is, with XLA where that is faster, and tell at the end what was done.",
    )
    parser.add_argument(
        "--jit-compile",
        choices=tuple(SWITCHES),
        default="auto",
        help="auto: XLA where it is faster (default); on: XLA, or an error that names what is in the way; off: none",
    )
    parser.add_argument("--report", metavar="FILE.json", help="write the summary to this file, too, and all numbers")
    parser.add_argument("--quiet", action="store_true", help="print no summary")
    parser.add_argument("--decisions", action="store_true", help="list what earlier runs have measured")
    parser.add_argument("--clear-decisions", action="store_true", help="list it, and forget it")
    parser.add_argument(
        OPTION,
        nargs="*",
        metavar="what",
        help="explain an error or a warning of keras_xla, by its text, some words of it, or the name that it ends with",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions that a report of a bug needs")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class Switch:
    """Turns `keras_xla.enable` on as soon as the script has imported Keras or TensorFlow.

    Python asks it for the loader of each module. Who asks need not import: what counts is that a loader has run.
    """

    def __init__(self, jit_compile: bool | str):
        self.on, self.problem = False, ""
        self.jit_compile = jit_compile
        self._lock = threading.Lock()  # held for a moment, never while something is imported
        self._running: list[str] = []
        self._enabling = False
        sys.meta_path.insert(0, self)
        self._enable_if_ready()

    def find_spec(self, name, path=None, target=None):
        """Called by Python before every import of something new, by a reload, and by whoever asks what there is."""
        if name in _LIBRARIES:
            return self._watched(name, self._run_library, path, target)
        if name.startswith("keras_xla."):
            return self._watched(name, self._run_ours, path, target)
        self._enable_if_ready()  # if a library was imported past this
        return None

    def _watched(self, name: str, run: Callable, path, target):
        """What the other finders find, but for how it is run."""
        rest = itertools.islice(itertools.dropwhile(lambda finder: finder is not self, list(sys.meta_path)), 1, None)
        found = (finder.find_spec(name, path, target) for finder in rest if hasattr(finder, "find_spec"))
        spec = next(filter(None, found), None)
        loader: Any = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module"):
            exec_module = loader.exec_module

            def watched(module):
                run(name, lambda: exec_module(module))
                with contextlib.suppress(AttributeError):
                    del loader.exec_module  # it is as it was

            with contextlib.suppress(AttributeError):  # a loader that is a class, or has slots
                loader.exec_module = watched
        return spec

    def _run_library(self, name: str, run: Callable[[], None]) -> None:
        with self._lock:
            self._running.append(name)
        try:
            run()
        finally:
            with self._lock:
                self._running.remove(name)
        self._enable_if_ready(name)

    def _run_ours(self, name: str, run: Callable[[], None]) -> None:
        importlib.import_module("keras")  # or it would be imported, and this turned on, in the middle of ours
        run()

    def _enable_if_ready(self, done: str = "") -> None:
        with self._lock:
            here = any(name == done or _is_imported(name) for name in _LIBRARIES)
            if not here or self._running or self._enabling:
                return
            self._enabling = True
        try:
            from keras_xla.training.enable import enable

            enable(self.jit_compile)
            self.on = True
        except ImportError as error:  # a backend without XLA, say, with which the script may do well
            self.problem = str(error)


def _is_imported(name: str) -> bool:
    """Whether all of it has run. A module that is loaded lazily is not looked at in a way that would load it."""
    module = sys.modules.get(name)
    if not isinstance(module, types.ModuleType):
        return False
    known = object.__getattribute__(module, "__dict__")
    return _LIBRARIES[name] in known and not getattr(known.get("__spec__"), "_initializing", False)


def _run_script(command: list[str]) -> None:
    path = command[0]
    sys.argv[:] = command
    if path == "-":
        _set_first_path("")
        code = compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True)
        _run_code(code, __file__="<stdin>", __loader__=importlib.machinery.BuiltinImporter, __cached__=None)
        return
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _set_first_path(None)
        sys.path.insert(0, os.path.abspath(path))
        _run_as_main("__main__", alter_argv=False)
        return
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    path = os.path.join(os.getcwd(), path)  # as Python does: behind a link `..` is another folder than its text says
    with io.open_code(path) as file:
        content = file.read()  # once: it may be a pipe
    code = pkgutil.read_code(io.BytesIO(content))  # of a .pyc file
    if code is None:
        code = compile(content, path, "exec", dont_inherit=True)
    _run_code(code, __file__=path, __loader__=_loader(path), __cached__=None)


def _loader(path: str) -> Any:
    kind = importlib.machinery.SourcelessFileLoader if path.endswith(".pyc") else importlib.machinery.SourceFileLoader
    return kind("__main__", path)


def _run_code(code: types.CodeType, **attributes: Any) -> None:
    """Run it as the module `__main__`, which has these attributes."""
    script = types.ModuleType("__main__")
    vars(script).update(__builtins__=builtins, __spec__=None, __annotations__={}, **attributes)
    sys.modules["__main__"] = script  # pickle and multiprocessing look there
    exec(code, script.__dict__)


def _run_module(command: list[str]) -> None:
    sys.argv[:] = command
    _set_first_path(os.getcwd())
    _run_as_main(command[0], alter_argv=True)


def _run_as_main(module: str, alter_argv: bool) -> None:
    """Run a module as `python -m` does: for good, since threads and `atexit` may look for `__main__` later on."""
    sys.modules["__main__"] = script = types.ModuleType("__main__")
    vars(script).update(__builtins__=builtins, __annotations__={})
    python.run_as_main(module, alter_argv)


def _set_first_path(folder: str | None) -> None:
    """Put the folder of a script or a module where Python has put that of the command."""
    if sys.flags.safe_path:
        return
    if folder is None:
        del sys.path[0]
    else:
        sys.path[0] = folder


def _hide_frames(caller: str) -> None:
    """Let tracebacks begin in the script; `caller` is the file that has called `main`, such as `bin/keras-xla`."""
    shown, ours = sys.excepthook, (*_OURS, caller)

    def excepthook(kind, error, traceback):
        while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
            traceback = traceback.tb_next
        shown(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = excepthook


def _tell_decisions(parser: argparse.ArgumentParser, clear: bool) -> None:
    from keras_xla.training.decide.decisions import decisions
    from keras_xla.training.reports.decision_list import listed

    memory = decisions()
    text, end = listed(memory.all()), f"in {memory.folder}"
    if clear:
        try:
            end = f"removed {memory.clear()} from {memory.folder}"
        except OSError as error:
            parser.error(f"--clear-decisions could not remove what is in {memory.folder}: {error}")
    _print(f"{text}\n{end}")


def _tell_cause(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.decisions or options.clear_decisions:
        parser.error(f"{OPTION} received --decisions or --clear-decisions; pass one of them")
    question = " ".join([*options.troubleshoot, *options.script, *(options.module or [])])
    try:
        told = troubleshooting.answer(question)
    except OSError as error:
        parser.error(f"{OPTION} cannot read its page, which the wheel of keras_xla brings along: {error}")
    if told is None:
        parser.error(f"{OPTION} received {question!r}, of which docs/troubleshooting.md has nothing; try fewer words")
    _print(told)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # whoever reads it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(switch: Switch, command: list[str], seconds: float, report: pathlib.Path | None, quiet: bool) -> None:
    def say(text: str) -> None:
        with contextlib.suppress(Exception):  # a script may have left no place for messages, and has an exit code
            if sys.stderr is not None:
                print(f"\nkeras_xla: {text}", file=sys.stderr)

    facts = {"command": command, "jit_compile": switch.jit_compile, "seconds": seconds}
    text = f"it stayed off: {switch.problem}" if switch.problem else "the script imported neither Keras nor TensorFlow"
    if switch.on:
        from keras_xla.training.reports import script_report as overview

        facts |= overview.overview()
        text = overview.overview_text()
    else:
        facts["problem"] = text
    if report:
        try:
            report.write_text(json.dumps(facts, indent=1, default=str))
        except OSError as error:  # which must not hide what the script has to say
            say(f"--report {report} could not be written: {error}")
    if switch.problem or not quiet:
        say(f"{' '.join(command)} took {seconds:.1f} s\n{text}")


if __name__ == "__main__":
    main()
