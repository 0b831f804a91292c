"""`python .ci/install.py ARGUMENTS`: `pip install ARGUMENTS`, with a line for each download and a count of packages."""

import pathlib
import subprocess
import sys
import sysconfig
import threading
import time

EVERY = 3  # seconds
SHOWN = ("Downloading ", "Using cached ", "Building wheel for ")


def main() -> int:
    """Run pip; its exit status."""
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *sys.argv[1:]]
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in pip.stdout:
        if line.startswith("Installing collected packages: "):
            threading.Thread(target=count, args=(pip, line.count(",") + 1), daemon=True).start()
        elif line.lstrip().startswith(SHOWN) and ".metadata" not in line:
            print(" ", line.strip(), flush=True)
    return pip.wait()


def count(pip: subprocess.Popen, packages: int) -> None:
    """Say every few seconds how many of the packages are there, until pip ends."""
    folder, start = pathlib.Path(sysconfig.get_path("purelib")), time.time()
    while pip.poll() is None:
        done = sum(path.stat().st_mtime >= start for path in folder.glob("*.dist-info"))
        print(f"  {done} of {packages} packages after {time.time() - start:.0f} s", flush=True)
        time.sleep(EVERY)


if __name__ == "__main__":
    sys.exit(main())
