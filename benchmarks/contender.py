"""A process that does what it is asked for, so that contenders of a comparison can take turns."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Contender:
    """A worker script in a process of its own: it says `ready`, then answers each line of JSON with one of JSON.

    The script is this checkout's, and `root` the checkout whose keras_xla it imports.
    """

    def __init__(self, label, python, script, *arguments, root=ROOT, backend=None, env=None):
        self.label = label
        command = [python, str(ROOT / "benchmarks" / script), *arguments]
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path, **(env or {})}
        env |= {"KERAS_BACKEND": backend} if backend else {}
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.process = subprocess.Popen(command, env=env, cwd=root, **pipes)
        self.command = " ".join(command)
        if self._line() != "ready":
            raise SystemExit(f"{label} did not start; run this to see why: {self.command}")

    def ask(self, **job):
        """The answer, a dict."""
        print(json.dumps(job), file=self.process.stdin, flush=True)
        line = self._line()
        if not line:
            raise SystemExit(f"{self.label} died at {job}: {self.command}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _line(self):
        """What the worker says next; some libraries print lines of their own."""
        for line in self.process.stdout:
            if line.strip() == "ready" or line.startswith("{"):
                return line.strip()
        return ""
