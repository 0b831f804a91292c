"""Versions of other packages, checked where a feature needs them: one place says which, pyproject.toml."""

from importlib import metadata

_SELF = "keras-xla"


def require(package: str, feature: str) -> None:
    """Check that `package` is installed in a version that pyproject.toml allows.

    Args:
        package: Its name on PyPI.
        feature: What needs it, for the message: "reading a model's config".

    Raises:
        ImportError: naming the version that was found, the one that is wanted, and the command to install it.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        declared = [Requirement(line) for line in metadata.requires(_SELF) or ()]
    except metadata.PackageNotFoundError:  # run from a folder that was never installed
        return
    wanted = next((r for r in declared if canonicalize_name(r.name) == canonicalize_name(package)), None)
    if wanted is None:
        return
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        found = None
    if found is not None and wanted.specifier.contains(found, prereleases=True):
        return
    state = "it is not installed" if found is None else f"version {found} is installed"
    raise ImportError(
        f"{feature} needs {wanted.name}{wanted.specifier}, and {state}. "
        f"Run: python -m pip install '{wanted.name}{wanted.specifier}'"
    )
