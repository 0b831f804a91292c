"""What a raw line tells of the machine and of the code that was measured."""

import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))

from bandwidth import read_bandwidth  # noqa: E402  (scripts in the folder above)
from facts import cpu  # noqa: E402


def facts() -> dict:
    """The commit, the CPU and Python, which stay the same during a command."""
    return dict(
        commit=_git("rev-parse", "--short=10", "HEAD"),
        changed=bool(_git("status", "--porcelain", "--", ":/keras_xla", ":/benchmarks/fit_suite")),
        cpu=cpu(),
        cores=os.cpu_count(),
        python=platform.python_version(),
    )


def bandwidth() -> float:
    """Bytes a second that two threads read, right now."""
    return read_bandwidth(megabytes=128)


def load() -> float:
    """Processes that wanted a core during the last minute."""
    return os.getloadavg()[0]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip() if not done.returncode else "unknown"
