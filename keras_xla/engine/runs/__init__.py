"""One batch, or a long list, from prompts in the cache to its outputs."""
