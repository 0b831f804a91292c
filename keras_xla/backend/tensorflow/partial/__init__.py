"""A traced step in parts: some plain, some compiled."""
