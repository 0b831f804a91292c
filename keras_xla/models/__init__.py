"""Language models described by a spec: layers, converters and checkpoint readers."""
