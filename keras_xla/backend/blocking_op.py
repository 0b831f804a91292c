"""What the backends report about operations that XLA cannot compile."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockingOp:
    """One operation without an XLA kernel."""

    op: str  # its type (`"StringUpper"`), or `"string input NAME"` for an argument of strings
    name: str  # its full name, with the name scopes of the layers that it is in
    where: str  # `file:line` of the user's code that made it; empty when unknown
