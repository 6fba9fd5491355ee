"""What the vectors hold: bytes that anybody can make again, by SHA-256 in counter mode."""

import hashlib
from collections.abc import Iterator

BLOCK = 1 << 16


def payload(size: int) -> bytes:
    """SHA-256 in counter mode and text, by turns of 1 KiB."""
    out = bytearray()
    number = 0
    while len(out) < size:
        noise = b"".join(hashlib.sha256(b"%d %d" % (number, part)).digest() for part in range(32))
        out += noise if number % 2 else (b"line %d of a text. " % number * 64)[:1024]
        number += 1
    return bytes(out[:size])


def draws() -> Iterator[int]:
    """Numbers of 128 bits: the halves of SHA-256 in counter mode, little-endian."""
    number = 0
    while True:
        digest = hashlib.sha256(b"draw %d" % number).digest()
        yield int.from_bytes(digest[:16], "little")
        yield int.from_bytes(digest[16:], "little")
        number += 1


def noise(size: int) -> bytes:
    """The draws themselves."""
    drawn = draws()
    return b"".join(next(drawn).to_bytes(16, "little") for _ in range(-(-size // 16)))[:size]


def numbers(size: int, width: int, mantissa: int, *, outside: int = 0, row: int = 0) -> bytes:
    """`size` bytes of little-endian floats of `width` bytes, of which `mantissa` bits are noise.

    An exponent is 120 (13 in 5 bits), less the trailing zeros of a draw, so that each value is half as frequent as the
    one above it. Each `outside`-th number has one that may be anything. With `row`, rows of so many numbers and their
    columns have scales of their own.
    """
    drawn = draws()
    bits = 8 * width - 1 - mantissa
    top = 13 if bits == 5 else 120
    scale, scales = 0, [next(drawn) % 12 for _ in range(row)]
    out = bytearray()
    for number in range(-(-size // width)):
        draw = next(drawn)
        halves = draw >> 100 | 1 << 7
        exponent = top - ((halves & -halves).bit_length() - 1)
        if row:
            scale = scale if number % row else next(drawn) % 20
            exponent += scale + scales[number % row]
        if outside and number % outside == outside - 1:
            exponent = (draw >> 80) % (1 << bits)
        sign = draw >> 64 & 1
        value = sign << bits + mantissa | exponent << mantissa | draw % (1 << mantissa)
        out += value.to_bytes(width, "little")
    return bytes(out[:size])


def integers(size: int) -> bytes:
    """Numbers of 2 bytes from 1000 to 1511."""
    drawn = draws()
    return b"".join((1000 + next(drawn) % 512).to_bytes(2, "little") for _ in range(size // 2))


def rows_of_zeros(size: int) -> bytes:
    """Floats of 4 bytes, in rows of 400 bytes of which every second is zero."""
    dense = numbers(size, 4, 23)
    return b"".join(bytes(400) if at // 400 % 2 else dense[at : at + 400] for at in range(0, size, 400))[:size]


def lines(size: int) -> bytes:
    """Text whose blocks are all different, and take a few bytes each once they are compressed."""
    blocks = -(-size // BLOCK)
    return b"".join((b"line of block %d\n" % number * BLOCK)[:BLOCK] for number in range(blocks))[:size]
