"""Random numbers that depend on (seed, row, step) and on nothing else.

Threefry-2x32, 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), in
`keras.ops`: every backend and every batch bucket gives a row the same draws.
"""

from keras import ops

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(key, counter):
    """Two words of `counter (2, ...)` uint32, encrypted with `key (2,)` (or broadcastable) uint32."""
    schedule = (key[0], key[1], ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), _word(_PARITY)))
    a, b = counter[0] + schedule[0], counter[1] + schedule[1]
    for block in range(5):
        for turn in _ROTATIONS[block % 2]:
            a = a + b
            left = ops.left_shift(b, _word(turn))
            b = ops.bitwise_xor(a, ops.bitwise_or(left, ops.right_shift(b, _word(32 - turn))))
        a = a + schedule[(block + 1) % 3]
        b = b + schedule[(block + 2) % 3] + _word(block + 1)
    return ops.stack([a, b])


def uniform(seed, rows, step):
    """One float32 in [0, 1) a row.

    Args:
        seed: `(2,)` uint32, or `(2, rows)`, one for each.
        rows: `(rows,)` int32, their numbers.
        step: Int32, a scalar or `(rows,)`.
    """
    row = ops.cast(rows, "uint32")
    counter = ops.stack([row, row * _word(0) + ops.cast(step, "uint32")])
    bits = ops.right_shift(threefry(seed, counter)[0], _word(8))  # 24 bits: what a float32 holds
    return ops.cast(ops.cast(bits, "int32"), "float32") * 2.0**-24


def uniform_each(seed, rows, count: int, step):
    """`count` float32 in (0, 1) for each of the `rows (rows,)` int32; what a row gets depends on its number alone."""
    rows, columns = ops.cast(rows, "uint32"), ops.cast(ops.arange(count, dtype="int32"), "uint32")
    row_key = threefry(seed, ops.stack([rows, rows * _word(0) + ops.cast(step, "uint32")]))  # [2, rows]
    place = ops.broadcast_to(columns[None], (rows.shape[0], count))
    bits = threefry(row_key[:, :, None], ops.stack([place, ops.zeros_like(place)]))[0]
    bits = ops.cast(ops.right_shift(bits, _word(9)), "int32")  # 23 bits, so that adding a half is exact
    return (ops.cast(bits, "float32") + 0.5) * 2.0**-23


def _word(value: int):
    return ops.convert_to_tensor(value, "uint32")
