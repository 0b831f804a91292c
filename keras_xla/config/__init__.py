"""Generation options: frozen, checked once, before anything compiles. Standard library only."""

from keras_xla.config.generation_options import (
    BEAMS,
    CONSTRAINTS,
    PER_ROW,
    SAMPLING,
    GenerationOptions,
    checkpoint_defaults,
    without_idle,
)

__all__ = ["BEAMS", "CONSTRAINTS", "PER_ROW", "SAMPLING", "GenerationOptions", "checkpoint_defaults", "without_idle"]
