"""Names of Keras 3 that it does not promise, by what they are about."""
