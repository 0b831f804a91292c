"""The calls of a decorated function, about which a backend asks `FunctionPolicy`: in which way shall they run?"""

from dataclasses import dataclass

from keras_xla.backend.new_shapes import StepProfile
from keras_xla.backend.signature import Signature


@dataclass
class Calls:
    """The calls of a function with arguments of the same shapes.

    Attributes:
        facts: What the traced function is made of.
        refusal: Why XLA must not run it, in words; empty if it may.
        leaves: Its tensors.
        executables: How many the function has already, for other arguments.
        count: Calls so far, without those that traced.
        seconds: That they took.
    """

    facts: StepProfile
    refusal: str
    leaves: Signature
    executables: int = 0
    count: int = 0
    seconds: float = 0.0
