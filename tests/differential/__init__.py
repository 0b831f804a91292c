"""The same script of actions in plain Keras and in keras_xla: everything that can be seen must be equal.

`python -m tests.differential --help` runs many scripts; each has a number, by which it is drawn again.
"""
