"""Functions that a script compiles or decorates itself."""
