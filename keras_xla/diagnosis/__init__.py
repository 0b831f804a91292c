"""What XLA cannot compile, where it is, and what to do about it."""
