"""Executables on disk: where they are, what is in a file, and what a file was made from."""
