"""Generation as a Keras layer: text in, text out."""
