"""The noise of the kernels by its definition, one number at a time."""

import math

MASK = 0xFFFFFFFF


def philox(counter, key):
    """Philox 4x32-10 by its definition."""
    c, k = [int(x) for x in counter], [int(x) for x in key]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def noise(seed, row, column, stream, gumbel):
    """A standard normal by Box and Muller, or a Gumbel; rows may have more than 32 bits."""
    lane, key = column % 4, (seed & MASK, seed >> 32)
    words = philox([column // 4, row & MASK, stream, int(gumbel) | (row >> 32) << 3], key)
    if gumbel:
        return -math.log(-math.log1p(-(words[lane] + 0.5) / 2**32))
    first = lane - lane % 2
    radius, turn = math.sqrt(-2 * math.log((words[first] + 0.5) / 2**32)), words[first + 1] / 2**32
    return radius * (math.sin if lane % 2 else math.cos)(2 * math.pi * turn)
