"""Names of TensorFlow that it does not promise, by what they are about."""
