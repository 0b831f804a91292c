"""XLA on the TensorFlow backend: a step is traced once, and run plainly, compiled, or in parts."""
