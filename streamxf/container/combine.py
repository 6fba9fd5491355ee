"""CRCs of pieces, put together without another look at the bytes.

A CRC-32C is the remainder of a polynomial over GF(2): the bits of the data are its coefficients, the first bit the
highest power, and the divisor P has the degree 32. Bits that stand before `n` bytes count x^(8n) times what they count
by themselves, so ::

    crc(a + b)  =  crc(a) * x^(8 len(b))  +  crc(b)      (mod P)

where the addition is an exclusive or. The complements that CRC-32C takes before and after cancel each other out in
this sum, so it holds for the values that functions for CRCs take and give: ``crc32c(b, start)`` is
``shifted(start, len(b)) ^ crc32c(b)``.

Polynomials are 32 bits in the order of CRC-32C, which is reflected: the highest bit is the coefficient of x^0.
"""

from __future__ import annotations

from functools import lru_cache

import crc32c

_ONE = 0x80000000
_BYTE = 0x00800000  # x^8
_WORD = b"\0\0\0\0"
_WORD_CRC = crc32c.crc32c(_WORD)
_LANES = int.from_bytes(b"\1" * 64, "big")
_DIGITS = int.from_bytes(b"0" * 64, "big")


def shifted(crc: int, size: int) -> int:
    """What `crc` counts in front of `size` bytes: ``crc * x^(8 size)``."""
    place = 0
    while size:  # digits of 8 bits: x^(8 size) is the product of their powers
        digit = size & 0xFF
        if digit:
            crc = _multiply(crc, _powers(place)[digit])
        size >>= 8
        place += 1
    return crc


def combined(first: int, second: int, size: int) -> int:
    """The CRC of two pieces, of which the second has `size` bytes, from the CRCs of both."""
    return shifted(first, size) ^ second


def _multiply(a: int, b: int) -> int:
    """The product mod P.

    As integers with one coefficient in each byte, which is a single multiplication: up to 32 products meet in a byte,
    so none is carried into the next, and the lowest bit of each is the sum over GF(2). A loop over 32 bits takes five
    times as long.
    """
    lanes = (_spread(a) * _spread(b)) & _LANES
    product = int((lanes | _DIGITS).to_bytes(64, "big"), 2)  # as text of zeros and ones; 63 bits, the highest is x^0
    above = (product & 0x7FFFFFFF) << 1  # the coefficients of x^32 to x^62
    return product >> 31 ^ crc32c.crc32c(_WORD, above) ^ _WORD_CRC  # four bytes are x^32


def _spread(word: int) -> int:
    return int.from_bytes(format(word, "032b").encode(), "big") & _LANES


@lru_cache(8)
def _powers(place: int) -> list[int]:
    """x^(8 * digit * 256^place) for each digit."""
    step = _BYTE
    if place:
        below = _powers(place - 1)
        step = _multiply(below[-1], below[1])
    powers = [_ONE]
    for _ in range(255):
        powers.append(_multiply(powers[-1], step))
    return powers
