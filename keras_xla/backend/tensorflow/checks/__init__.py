"""Values that TensorFlow's kernels check and XLA does not: found in a traced step, and looked at before it runs."""
