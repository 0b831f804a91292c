"""The few sizes that others are rounded up to, so that XLA compiles few times."""


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is neither below `size` nor below `least`, itself a power of two."""
    return 1 << (max(size, least) - 1).bit_length()
