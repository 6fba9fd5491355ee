"""Blocks of numbers for FloatZip, shapes of payloads, and what may happen to a payload."""

import random

import zstandard
from hypothesis import strategies as st

from tests.floatzip_forge import Shape, kinds

FLOATS = {"bfloat16": (2, 7), "float16": (2, 10), "float32": (4, 23), "float64": (8, 52)}  # bytes, bits of the mantissa


def floats(dtype: str, size: int, seed: int, outside: float = 0.0) -> bytes:
    """Numbers whose exponents lie close together, except for a share `outside` that may be anything."""
    rng = random.Random(seed)
    width, mantissa = FLOATS[dtype]
    most = 1 << 8 * width - 1 - mantissa
    middle = rng.randrange(8, most - 8)
    out = bytearray()
    while len(out) < size:
        anything = rng.random() < outside
        exponent = rng.randrange(most) if anything else middle + min(7, int(rng.expovariate(0.7)))
        number = rng.getrandbits(1) << 8 * width - 1 | exponent << mantissa | rng.getrandbits(mantissa)
        out += number.to_bytes(width, "little")
    return bytes(out[:size])


def moments(rows: int, row: int, seed: int) -> bytes:
    """A matrix of 4-byte numbers in which every row and every column has a scale of its own."""
    rng = random.Random(seed)
    columns = [rng.randrange(12) for _ in range(row)]
    out = bytearray()
    for _ in range(rows):
        level = rng.randrange(80, 100)
        for column in columns:
            exponent = level + column - min(7, int(rng.expovariate(0.7)))
            out += (exponent << 23 | rng.getrandbits(23)).to_bytes(4, "little")
    return bytes(out)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    width = draw(st.sampled_from([1, 2, 4, 8]))
    planes: list[tuple[int, int]] = []
    while left := width - sum(lane for _, lane in planes):
        planes.append(draw(st.sampled_from([kind for kind in kinds(width) if kind[1] <= left])))
    rotated = width > 1 and draw(st.booleans())
    phase, base = draw(st.integers(0, width - 1)), draw(st.integers(0, 255))
    period = draw(st.one_of(st.integers(1, 100), st.integers(1, 1 << 16)))
    levels, bits = draw(st.binary(min_size=1, max_size=5)), draw(st.integers(1, 7))
    return Shape(width, rotated, phase, planes, base, levels, period, bits)


Change = tuple[str, int, int]
changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "flip", "set", "set", "cut", "append", "remove", "insert", "size"]),
        st.one_of(st.integers(0, 50), st.integers(0, 1 << 16)),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)


def changed(payload: bytes, listed: list[Change]) -> bytes:
    """`payload` after each change: a kind, a place (modulo the size) and a byte."""
    out = bytearray(payload)
    for kind, number, byte in listed:
        place = number % len(out) if out else 0
        if kind == "append" or not out:
            out += bytes([byte]) * (1 + number % 9)
        elif kind == "flip":
            out[place] ^= 1 << byte % 8
        elif kind == "set":
            out[place] = byte
        elif kind == "cut":
            del out[place:]
        elif kind == "remove":
            del out[place]
        elif kind == "insert":
            out.insert(place, byte)
        else:  # a u32 of the table, or of a packed plane, by a little
            place = min(place % 64, max(0, len(out) - 4))
            word = int.from_bytes(out[place : place + 4], "little") + byte - 128
            out[place : place + 4] = (word % (1 << 32)).to_bytes(4, "little")
    return bytes(out)


def by_zstd(frame: bytes, size: int) -> bytes | None:
    """What libzstd makes of a whole frame; None if that is not `size` bytes."""
    try:
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
    return data if len(data) == size else None
