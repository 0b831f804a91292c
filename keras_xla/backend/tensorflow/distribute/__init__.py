"""Steps of models under `tf.distribute`: what each replica does for itself is compiled."""
