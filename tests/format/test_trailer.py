"""A metadata file taken apart and put together, without a look at its index."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import MetadataError
from streamxf.format.index import Sections, Trailer, pack, pack_keys
from streamxf.format.limits import MAX_INDEX, MAX_KEY_LINE, MAX_KEYS, TRAILER_BYTES
from tests.forge import METADATA_MAGIC, MetadataParts


def read(data: bytes) -> Sections | None:
    """As a reader does: the last 88 bytes first."""
    trailer = Trailer.parse(data[-TRAILER_BYTES:], len(data))
    return trailer.split(data[-trailer.size :]) if trailer is not None else None


@given(pickled=st.binary(max_size=60), index=st.binary(min_size=1, max_size=60), keys=st.binary(max_size=60))
def test_round_trip(pickled: bytes, index: bytes, keys: bytes) -> None:
    data = pack(pickled, index, keys)
    assert data == MetadataParts(pickled, index, keys).pack()
    found = read(data)
    assert found is not None
    assert (bytes(found.index), bytes(found.keys)) == (index, keys)
    assert found.digest == hashlib.sha256(b"streamxf/1 index\1\1\0\0" + index).digest()
    flagged = read(pack(pickled, index, keys, bytes([1, 1, 0, 255])))
    assert flagged is not None
    assert flagged.digest == hashlib.sha256(b"streamxf/1 index\1\1\0\xff" + index).digest()
    trailer = Trailer.parse(data[-88:], len(data))
    assert trailer is not None
    assert trailer.head_digest == hashlib.sha256(pickled).digest()


def test_whatever_changes_behind_the_pickle_is_found() -> None:
    data = pack(b"pickle", b"index", b"keys")
    for bit in range(8 * 6, 8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        if bytes(changed[-8:]) != METADATA_MAGIC:
            assert read(bytes(changed)) is None  # another writer's, whose pickle this is not
            continue
        with pytest.raises(MetadataError):
            read(bytes(changed))


@pytest.mark.parametrize("data", [b"", b"x", b"a pickle of torch's" * 9, METADATA_MAGIC + b"\0"])
def test_other_files_have_no_trailer(data: bytes) -> None:
    assert read(data) is None


@pytest.mark.parametrize("size", [8, 40, 87])
def test_a_part_of_a_trailer(size: int) -> None:
    with pytest.raises(MetadataError, match="truncated"):
        read(pack(b"", b"i", b"")[-size:])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"index_size": 0}, "impossible sizes"),
        ({"index_size": 2**32 - 1}, "impossible sizes"),
        ({"index_size": MAX_INDEX + 1}, "impossible sizes"),
        ({"index_size": 100}, "impossible sizes"),
        ({"keys_size": MAX_KEYS + 1}, "impossible sizes"),
        ({"keys_size": 100}, "impossible sizes"),
        ({"index_size": 4}, "does not match"),
        ({"format_bytes": bytes([0, 1, 0, 0])}, "version 0"),
        ({"format_bytes": bytes([2, 1, 0, 0])}, "version 2"),
        ({"format_bytes": bytes([1, 2, 0, 0])}, "suite 2"),
        ({"format_bytes": bytes([1, 1, 128, 0])}, "critical flags 128"),
        ({"reserved": b"\1" + bytes(3)}, "not zero"),
    ],
    ids=str,
)
def test_trailers_that_cannot_be(changes: dict[str, object], match: str) -> None:
    with pytest.raises(MetadataError, match=match):
        read(MetadataParts(b"pickle", b"index", b"keys").change(**changes).pack())


def test_what_is_too_large_is_not_written() -> None:
    with pytest.raises(MetadataError, match="too large"):
        pack(b"", bytes(MAX_INDEX + 1), b"")
    with pytest.raises(MetadataError, match="too large"):
        pack(b"", b"x", bytes(MAX_KEYS + 1))


def sections(keys: bytes) -> Sections:
    return Sections(memoryview(b"index"), memoryview(keys))


def test_the_lines_of_keys() -> None:
    keys = pack_keys("dek=1", "mac=2", ["dek=3", "dek=4"])
    assert keys == b"dek=1\nmac=2\ndek=3\ndek=4"
    assert sections(keys).key_lines() == ("dek=1", "mac=2")
    assert sections(keys).other_key_lines() == ["dek=3", "dek=4"]
    assert sections(b"a\nb").other_key_lines() == []
    assert sections(b"").key_lines() is None
    most = b"x" * MAX_KEY_LINE
    assert sections(most + b"\n" + most + b"\nmore").key_lines() == (most.decode(), most.decode())


@pytest.mark.parametrize(
    "keys", [b"x", b"x" * (MAX_KEY_LINE + 1) + b"\ny", b"x\n" + b"y" * (MAX_KEY_LINE + 1), b"\x80\ny", b"x\n\x80"]
)
def test_lines_that_are_malformed(keys: bytes) -> None:
    with pytest.raises(MetadataError, match=r"malformed|ASCII"):
        sections(keys).key_lines()


def test_other_lines_are_ascii_too() -> None:
    with pytest.raises(MetadataError, match="ASCII"):
        sections(b"a\nb\n\x80").other_key_lines()


def test_fields_stand_where_the_page_says() -> None:
    data = pack(b"pickle", b"index", b"keys")
    fields = struct.unpack("<II4sI32s32s8s", data[-88:])
    assert fields[:4] == (5, 4, bytes([1, 1, 0, 0]), 0)
    assert fields[5] == hashlib.sha256(data[6:-40]).digest()
