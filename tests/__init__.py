"""The tests: they read like the specification, one file for each module."""

import hypothesis


def examples(count: int, **more) -> hypothesis.settings:
    """Settings of a test that takes long: so many examples in `make test-all` (profile `random`), else a third."""
    same = hypothesis.settings.default.derandomize
    return hypothesis.settings(max_examples=-(-count // 3) if same else count, deadline=None, **more)
