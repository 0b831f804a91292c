"""XLA for fit, evaluate and predict."""
