"""What other packages do not promise: private and undocumented names, a module or a folder for each package.

Every name says what it is for, in which versions it was seen, and what is off where it is gone: never the training.
"""
