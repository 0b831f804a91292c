"""`python .ci/install.py ARGUMENTS`: `pip install ARGUMENTS`, with a line for each download and a count of packages."""

import pathlib
import subprocess
import sys
import sysconfig
import time

EVERY = 3  # seconds


def main() -> int:
    """Run pip; its exit status."""
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *sys.argv[1:]]
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in pip.stdout:
        if line.startswith("Installing collected packages: "):
            count(pip, line.count(",") + 1)
        elif line.lstrip().startswith(("Downloading ", "Using cached ")) and ".metadata" not in line:
            print(" ", line.strip(), flush=True)
    return pip.wait()


def count(pip: subprocess.Popen, packages: int) -> None:
    """Say every few seconds how many of the packages are installed, until pip ends."""
    folder = pathlib.Path(sysconfig.get_path("purelib"))
    before = len(list(folder.glob("*.dist-info")))
    start = time.monotonic()
    while pip.poll() is None:
        done = min(len(list(folder.glob("*.dist-info"))) - before, packages)
        print(f"  {done} of {packages} packages installed after {time.monotonic() - start:.0f} s", flush=True)
        try:
            pip.wait(EVERY)
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(main())
