"""GGUF files: their header, the config and the tokenizer in their metadata, and their weights."""
