"""Every flipped bit, every truncation and appended bytes of small files: nothing but errors, from either reader."""

from __future__ import annotations

import pytest
from reference_decoder import FormatError, decode_plain_file
from samples import FULL, KEY, READERS, encode

from streamxf import Checksum, ZStandard
from streamxf.errors import StreamxfError

DATA = b"a small stream, a small stream"
FILES = {
    "none": encode(DATA, ()),
    "zstd": encode(DATA, [ZStandard()]),
    "checksum": encode(DATA, [Checksum()]),
    "full": encode(DATA, FULL),
    "full, empty": encode(b"", FULL),
}
BOTH = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
ALL = pytest.mark.parametrize("name", FILES)


@BOTH
@ALL
def test_intact(read, name):
    assert read(FILES[name]) == (b"" if "empty" in name else DATA)


@BOTH
@ALL
def test_every_flipped_bit(read, name):
    file = FILES[name]
    for bit in range(8 * len(file)):
        damaged = bytearray(file)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StreamxfError):
            read(bytes(damaged))


@BOTH
@ALL
def test_every_truncation(read, name):
    file = FILES[name]
    for size in range(len(file)):
        with pytest.raises(StreamxfError):
            read(file[:size])


@BOTH
@ALL
@pytest.mark.parametrize("extra", [1, 16, 512])
def test_appended_bytes(read, name, extra):
    file = FILES[name]
    for tail in (bytes(extra), b"\xff" * extra, file[-extra:], file[:extra]):
        with pytest.raises(StreamxfError):
            read(file + tail)


@ALL
def test_the_second_decoder_refuses_flipped_bits_too(name):
    file = FILES[name]
    for bit in range(0, 8 * len(file), 3):
        damaged = bytearray(file)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            decode_plain_file(bytes(damaged), key=KEY.reveal())
