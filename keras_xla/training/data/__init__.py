"""Data made ready for XLA: lengths padded to a few sizes, layers moved into the input pipeline."""
