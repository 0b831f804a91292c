"""Nothing to replace on JAX: there `jax.jit`, which scripts write themselves, is XLA."""


def replace_functions(*_) -> None:
    """Does nothing."""


restore_functions = replace_functions
