"""Errors that say that memory was used up."""

_TOLD = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory")


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory was used up; XLA says so in words."""
    classes = {each.__name__ for each in type(error).__mro__}
    return bool(classes & {"ResourceExhaustedError", "MemoryError"}) or any(text in str(error) for text in _TOLD)
