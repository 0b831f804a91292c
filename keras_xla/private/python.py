"""What `python -m` runs modules by."""

import runpy


def run_as_main(module: str, alter_argv: bool) -> None:
    """Run a module in what is `__main__`, as `python -m` does; or, without changing `sys.argv`, as Python a folder."""
    runpy._run_module_as_main(module, alter_argv)  # type: ignore[attr-defined]
