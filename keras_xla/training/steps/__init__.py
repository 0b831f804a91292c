"""How batches reach a step, several at a time, and how results leave it."""
