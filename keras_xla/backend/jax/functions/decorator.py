"""Nothing to replace on JAX: there `jax.jit`, which scripts write themselves, is XLA."""

from collections.abc import Callable


def replace_functions(policy_of: Callable) -> None:
    """Does nothing."""


def restore_functions() -> None:
    """Does nothing."""
