"""The tests that the Keras wheel ships, run plainly and with `keras_xla`: `make keras-tests`."""
