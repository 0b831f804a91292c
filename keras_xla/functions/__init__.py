"""`keras_xla.jit`: any function or method, compiled by XLA."""
