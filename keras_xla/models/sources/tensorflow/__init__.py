"""Checkpoints that TensorFlow wrote: `tf_model.h5` and safetensors with TensorFlow's names."""
