"""FloatZip against the decoder that was written from docs/format.md alone: both give the same bytes, or both refuse."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamxf
from streamxf import Checksum, Encrypt, FloatZip, ZStandard
from tests.codecs.implementations import BUILT, outcome, stored
from tests.floatzip_blocks import FLOATS, Change, changed, changes, floats, moments, shapes
from tests.floatzip_forge import FIXED, LEVELLED, PACKED, RAW, ZSTD, Shape, features, forge
from tests.reference_codecs import Block, Refused, decode_floatzip
from tests.reference_decoder import read_plain
from tests.reference_keys import Reader, aes_key
from tests.samples import BLOCK, KEY, encode

MIB = 1 << 20
DTYPES = [
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn"),
    *("int64", "bool", None),
]
PACKED_BYTES = 40_000  # from 32 KiB on, exponents are packed


def by_codec(payload: bytes, limit: int) -> bytes | None:
    """What the codec makes of `payload`; None if it refuses, with the same text by each implementation."""
    found = {outcome(payload, limit, name) for name in BUILT}
    assert len(found) == 1
    (result,) = found
    return None if isinstance(result, str) else result


def by_page(payload: bytes, limit: int) -> bytes | None:
    try:
        return decode_floatzip(payload, [], limit, Block(0, True, b""))
    except Refused:
        return None


def check(block: bytes, dtype: str | None, row: int | None = None) -> None:
    """Encode, and compare what both decoders make of it with `block`."""
    for payload in {stored(block, dtype, row, name) for name in BUILT}:
        assert agreed(payload, len(block)) == block
        if block:
            assert agreed(payload, len(block) - 1) is None


def agreed(payload: bytes, limit: int) -> bytes | None:
    """What both decoders make of `payload`, which may be anything."""
    found = by_codec(payload, limit)
    assert by_page(payload, limit) == found
    return found


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
    for number, dtype in enumerate((*FLOATS, None)):
        for edge in range((len(block) + number) % 2, 8, 2):  # and the others with the next type
            check(bytes(range(1, edge + 1)) + block, dtype, ROW)
            check(block[edge:], dtype)
            check(block[: len(block) - edge], dtype)
        for size in range(41):
            check(block[:size], dtype)


@pytest.mark.parametrize("name", BUILT)
def test_the_blocks_above_meet_every_coding_the_codec_has(name: str) -> None:
    seen = set()
    for block in NAMED.values():
        for dtype in (*FLOATS, None):
            for edge in range(8):
                seen |= features(stored(bytes(edge) + block, dtype, None, name))
                seen |= features(stored(block[: len(block) - edge], dtype, ROW, name))
    assert seen >= {"stored", "width 1", "width 2", "width 4", "width 8", "turned", "unturned", "raw", "zstd", "packed"}
    assert seen >= {"exceptions", "levels of rows", "levels of columns", "phase", "lane 1", "lane 2", "lane 4"}


# -- everything the page allows ----------------------------------------------------------------------------------------


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

PAYLOADS = [
    stored(bytes(edge) + block + b"\x01", dtype, ROW, name)
    for block in NAMED.values()
    for dtype in (*FLOATS, None)
    for edge in (0, 3)
    for name in BUILT
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
    "float64": forge(floats("float64", 27, 3), Shape(8, True, 1, [(RAW, 4), (ZSTD, 1), (PACKED, 1), (RAW, 2)], 7)),
    "fixed": forge(floats("bfloat16", 31, 3, 0.2), Shape(2, True, 1, [(RAW, 1), (FIXED, 1)], 250, bits=3)),
    "bytes": forge(b"abcabcabd", Shape(1, False, 0, [(PACKED, 1)], 97)),
    "levels": forge(b"abcdefghijkl", Shape(2, False, 0, [(RAW, 1), (LEVELLED, 1)], 97, b"\0\1\2\3", 3)),
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
