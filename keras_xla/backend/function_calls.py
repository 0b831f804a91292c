"""The calls of a decorated function, about which a backend asks `FunctionPolicy`: in which way shall they run?"""

from dataclasses import dataclass

from keras_xla.backend.new_shapes import StepProfile
from keras_xla.backend.signature import Signature


@dataclass
class Calls:
    """The calls of a function with arguments of the same shapes."""

    facts: StepProfile
    refusal: str  # why XLA must not run it, in words; empty if it may
    leaves: Signature
    executables: int = 0  # that the function has already, for other arguments
    count: int = 0  # so far, without those that traced
    seconds: float = 0.0  # that these took
