"""What other packages do not promise: their private and undocumented names, one module a package, and nothing else.

Every name says what it is for, in which versions it was seen, and what is off where it is gone: never the training.
"""
