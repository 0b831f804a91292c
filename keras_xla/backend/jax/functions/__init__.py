"""Functions that a script compiles itself."""
