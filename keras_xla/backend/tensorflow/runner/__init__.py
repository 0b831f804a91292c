"""One step of a model, run in the way that was chosen: traced, looped over batches, timed."""
