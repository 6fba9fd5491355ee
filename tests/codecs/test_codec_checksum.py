"""Checksum stores the digest that format.md says, and finds whatever was changed."""

import hashlib

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf import Checksum
from streamxf.errors import ChecksumError, CodecError
from tests.altered import bit_flips
from tests.codecs.blocks import info

DIGESTS = {
    "crc32c": lambda data: crc32c.crc32c(data).to_bytes(4, "little"),
    "sha256": lambda d: hashlib.sha256(d).digest(),
}
BOTH = pytest.mark.parametrize("algorithm", DIGESTS)


@BOTH
@given(data=st.binary(max_size=200))
def test_the_digest_follows_the_data(algorithm, data):
    stored = bytes(Checksum(algorithm).encode(memoryview(data), info()))
    assert stored == data + DIGESTS[algorithm](data)
    assert bytes(Checksum(algorithm).decode(memoryview(stored), info())) == data


@BOTH
def test_every_flipped_bit_is_found(algorithm):
    for changed in bit_flips(Checksum(algorithm).encode(memoryview(b"some data"), info())):
        with pytest.raises(ChecksumError, match=algorithm):
            Checksum(algorithm).decode(memoryview(changed), info())


@BOTH
def test_too_short_for_a_digest(algorithm):
    for size in range(len(DIGESTS[algorithm](b""))):
        with pytest.raises(CodecError, match="too short"):
            Checksum(algorithm).decode(memoryview(bytes(size)), info())
