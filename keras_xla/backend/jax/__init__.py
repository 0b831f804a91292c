"""XLA on the JAX backend, which compiles every step."""
