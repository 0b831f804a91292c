"""The source of this package as a digest: what was traced by other code is not found again."""

import hashlib
import pathlib


def _digest() -> str:
    root = pathlib.Path(__file__).parents[2]
    digest, paths = hashlib.sha256(), sorted(root.rglob("*.py"))
    for path in paths:
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16] if paths else ""


# Of all modules as they are on disk when the first of them is imported, not when something is traced: a file may have
# been edited by then. Empty where there is no source.
SOURCE_DIGEST = _digest()
