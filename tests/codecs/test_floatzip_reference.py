"""FloatZip against the decoder that was written from docs/format.md alone: both give the same bytes, or both refuse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest
from floatzip_forge import LEVELLED, PACKED, RAW, ZSTD, Shape, features, forge
from hypothesis import given
from hypothesis import strategies as st
from reference_codecs import Block, Refused, decode_floatzip
from reference_keys import Reader, aes_key
from reference_plain import read_plain
from samples import BLOCK, KEY, encode

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, ZStandard
from streamxf.buffers import Scratch
from streamxf.codec import BlockInfo, StreamInfo
from streamxf.errors import CodecError
from streamxf.format.container import stage_limit

MIB = 1 << 20
DTYPES = [
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "int64",
    "bool",
    None,
]
FLOATS = {"bfloat16": (2, 7), "float16": (2, 10), "float32": (4, 23), "float64": (8, 52)}  # bytes, bits of the mantissa
PACKED_BYTES = 40_000  # from 32 KiB on, exponents are packed


def _info(dtype: str | None, limit: int, row: int | None = None) -> BlockInfo:
    stream = StreamInfo(MIB, bytes(32), bytes(32), None, dtype, row)
    return BlockInfo(0, True, limit, None, stream, partial(Scratch().take, 0))


def stored_by_codec(block: bytes, dtype: str | None = None, row: int | None = None) -> bytes:
    return bytes(FloatZip().encode(memoryview(block), _info(dtype, stage_limit(MIB), row)))


def by_codec(payload: bytes, limit: int) -> bytes | None:
    """What the codec makes of `payload`; None if it refuses. An error other than its own is a failure."""
    try:
        return bytes(FloatZip().decode(memoryview(payload), _info(None, limit)))
    except CodecError:
        return None


def by_page(payload: bytes, limit: int) -> bytes | None:
    try:
        return decode_floatzip(payload, [], limit, Block(0, True, b""))
    except Refused:
        return None


def check(block: bytes, dtype: str | None, row: int | None = None) -> None:
    """Encode, and compare what both decoders make of it with `block`."""
    payload = stored_by_codec(block, dtype, row)
    assert by_page(payload, len(block)) == block
    assert by_codec(payload, len(block)) == block
    if block:
        assert by_page(payload, len(block) - 1) is None
        assert by_codec(payload, len(block) - 1) is None


def agreed(payload: bytes, limit: int) -> bytes | None:
    """What both decoders make of `payload`, which may be anything."""
    found = by_codec(payload, limit)
    assert by_page(payload, limit) == found
    return found


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


ROW = 128
FLOAT_BLOCKS = {
    (dtype, outside): floats(dtype, PACKED_BYTES, 1, outside) for dtype in FLOATS for outside in (0.0, 0.002)
}
NAMED = {
    **{f"{dtype}, {outside} outside": block for (dtype, outside), block in FLOAT_BLOCKS.items()},
    "moments": moments(90, ROW, 1),
    "rows of zeros": b"".join(bytes(400) + floats("float32", 400, row) for row in range(50)),
    "zeros": bytes(PACKED_BYTES),
    "integers": b"".join((number * 7919 % 50_000).to_bytes(8, "little") for number in range(5000)),
    "text": b"".join(b"item %d of the list\n" % number for number in range(2000)),
    "noise": random.Random(2).randbytes(PACKED_BYTES),
}
blocks = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=20), st.integers(1, 300)),
    st.builds(
        lambda block, start, less, edge: (edge + block)[start : len(edge) + len(block) - less],
        st.sampled_from(sorted(NAMED.values())),
        st.integers(0, 9),
        st.integers(0, 9),
        st.binary(max_size=8),
    ),
)


@given(blocks, st.sampled_from(DTYPES), st.sampled_from([None, 64, 100, ROW]))
def test_the_page_tells_how_to_decode_what_the_codec_stores(block: bytes, dtype: str | None, row: int | None) -> None:
    check(block, dtype, row)


@pytest.mark.parametrize("block", NAMED.values(), ids=NAMED)
def test_every_phase_and_odd_length_of_known_data(block: bytes) -> None:
    for dtype in (*FLOATS, None):
        for edge in range(8):
            check(bytes(range(1, edge + 1)) + block, dtype, ROW)
            check(block[edge:], dtype)
            check(block[: len(block) - edge], dtype)
        for size in range(41):
            check(block[:size], dtype)


def test_the_blocks_above_meet_every_coding_the_codec_has() -> None:
    seen = set()
    for block in NAMED.values():
        for dtype in (*FLOATS, None):
            for edge in range(8):
                seen |= features(stored_by_codec(bytes(edge) + block, dtype))
                seen |= features(stored_by_codec(block[: len(block) - edge], dtype, ROW))
    assert seen >= {"stored", "width 1", "width 2", "width 4", "width 8", "turned", "unturned", "raw", "zstd", "packed"}
    assert seen >= {"exceptions", "levels of rows", "levels of columns", "phase", "lane 1", "lane 2", "lane 4"}


# -- everything the page allows ----------------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    width = draw(st.sampled_from([1, 2, 4, 8]))
    planes: list[tuple[int, int]] = []
    while left := width - sum(lane for _, lane in planes):
        lane = draw(st.sampled_from([lane for lane in (1, 2, 4) if lane <= left]))
        planes.append((draw(st.sampled_from([RAW, ZSTD, PACKED, LEVELLED] if lane == 1 else [RAW, ZSTD])), lane))
    rotated = width > 1 and draw(st.booleans())
    phase, base = draw(st.integers(0, width - 1)), draw(st.integers(0, 255))
    period = draw(st.one_of(st.integers(1, 100), st.integers(1, 1 << 16)))
    return Shape(width, rotated, phase, planes, base, draw(st.binary(min_size=1, max_size=5)), period)


small = st.one_of(
    st.binary(min_size=15, max_size=200),
    st.builds(floats, st.sampled_from(sorted(FLOATS)), st.integers(15, 900), st.integers(0, 9)),
)


@given(small, shapes(), st.integers(0, 15))
def test_both_take_everything_that_the_page_allows(block: bytes, shape: Shape, idle: int) -> None:
    payload = forge(block, shape, idle)
    assert agreed(payload, len(block)) == block
    assert agreed(payload, len(block) - 1) is None


# -- and nothing else --------------------------------------------------------------------------------------------------

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


PAYLOADS = [
    stored_by_codec(bytes(edge) + block + b"\x01", dtype, ROW)
    for block in NAMED.values()
    for dtype in (*FLOATS, None)
    for edge in (0, 3)
]


@given(st.sampled_from(PAYLOADS), changes, st.sampled_from([0, 100, PACKED_BYTES, MIB]))
def test_both_agree_on_what_is_damaged(payload: bytes, listed: list[Change], limit: int) -> None:
    agreed(changed(payload, listed), limit)


@given(small, shapes(), changes)
def test_both_agree_on_damage_to_what_the_codec_never_makes(block: bytes, shape: Shape, listed: list[Change]) -> None:
    agreed(changed(forge(block, shape), listed), 1000)


@given(st.integers(0, 255), st.binary(max_size=100))
def test_both_agree_on_any_bytes(layout: int, rest: bytes) -> None:
    agreed(bytes([layout]) + rest, 1000)


FORGED = {
    "bfloat16": forge(floats("bfloat16", 23, 3, 0.2), Shape(2, True, 0, [(RAW, 1), (PACKED, 1)], 255)),
    "float32": forge(floats("float32", 31, 3), Shape(4, False, 3, [(RAW, 2), (ZSTD, 1), (PACKED, 1)], 7)),
    "float64": forge(floats("float64", 27, 3), Shape(8, True, 1, [(ZSTD, 4), (RAW, 1), (PACKED, 1), (ZSTD, 2)], 7)),
    "bytes": forge(b"abcabcabd", Shape(1, False, 0, [(PACKED, 1)], 97)),
    "levels": forge(b"abcdef", Shape(1, False, 0, [(LEVELLED, 1)], 97, b"\0\1\2\3", 3)),
}


SOME = (0, 1, 2, 4, 8, 16, 32, 64, 127, 128, 192, 254, 255)


@pytest.mark.parametrize("values", [SOME, pytest.param(range(256), marks=pytest.mark.exhaustive)], ids=["some", "all"])
@pytest.mark.parametrize("payload", FORGED.values(), ids=FORGED)
def test_every_byte_has_another_value(payload: bytes, values: Sequence[int]) -> None:
    taken = refused = 0
    for place in range(len(payload)):
        for value in values:
            damaged = payload[:place] + bytes([value]) + payload[place + 1 :]
            if agreed(damaged, 100) is None:
                refused += 1
            else:
                taken += 1
    assert taken
    assert refused


@pytest.mark.parametrize("payload", FORGED.values(), ids=FORGED)
def test_every_length(payload: bytes) -> None:
    for size in range(len(payload)):
        assert agreed(payload[:size], 100) is None
    assert agreed(payload + b"\0", 100) is None
    assert agreed(payload, 100) is not None


def test_half_a_byte_that_no_element_needs() -> None:
    odd = floats("bfloat16", 6, 1)
    shape = Shape(2, True, 0, [(RAW, 1), (PACKED, 1)], 0)
    payload = forge(odd, shape, idle_halves=0)
    assert agreed(payload, 6) == odd
    # the frame of two bytes is stored as it is: its second byte is the payload's last
    for value in range(256):
        found = agreed(payload[:-1] + bytes([value]), 6)
        assert (found is None) == (value > 15)


# -- in a container ----------------------------------------------------------------------------------------------------

CHAINS = [
    [FloatZip()],
    [FloatZip(), Checksum(), Encrypt(KEY)],
    [Checksum("sha256"), FloatZip(), FloatZip()],
    [ZStandard(1), FloatZip(), Encrypt(KEY), Checksum()],
]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "+".join(type(codec).__name__ for codec in chain))
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 77])
def test_in_a_chain_of_a_plain_file(chain: list[streamxf.Codec], size: int) -> None:
    data = floats("bfloat16", size, 5, 0.001)
    keys = [aes_key(bytes(range(32)))] if any(isinstance(codec, Encrypt) for codec in chain) else []
    assert read_plain(encode(data, chain), Reader(keys)) == data
