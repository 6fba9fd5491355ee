"""A metadata file taken apart and put together, without a look at its index."""

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import MetadataError, UnsupportedError
from streamxf.format.limits import MAX_KEY_LINE, MAX_ROOT, TRAILER_BYTES
from streamxf.format.sections import Sections, Trailer, pack, pack_keys
from tests.altered import bit_flips
from tests.forge import METADATA_MAGIC, MetadataParts


def read(data: bytes) -> Sections | None:
    """As a reader does: the last 104 bytes first."""
    trailer = Trailer.parse(data[-TRAILER_BYTES:], len(data))
    return trailer.split(data[-trailer.size :]) if trailer is not None else None


some = st.binary(max_size=60)


@given(head=some, parts=some, root=st.binary(min_size=1, max_size=60), keys=some)
def test_round_trip(head: bytes, parts: bytes, root: bytes, keys: bytes) -> None:
    data = pack(head, parts, root, keys)
    assert data == MetadataParts(head, root, keys, parts).pack()
    trailer = Trailer.parse(data[-104:], len(data))
    assert trailer is not None
    assert trailer.head_digest == hashlib.sha256(head).digest()
    found = trailer.split(data[-trailer.size :], read=lambda at, size: data[at : at + size])
    assert (bytes(found.root), bytes(found.keys)) == (root, keys)
    assert (found.head(), found.parts(0, len(parts)), found.parts(len(parts), 0)) == (head, parts, b"")
    with pytest.raises(MetadataError, match="beyond the parts"):
        found.parts(0, len(parts) + 1)
    assert found.digest == hashlib.sha256(b"streamxf/1 index\1\1\0\0" + root).digest()
    flagged = read(pack(head, parts, root, keys, bytes([1, 1, 0, 255])))
    assert flagged is not None
    assert flagged.digest == hashlib.sha256(b"streamxf/1 index\1\1\0\xff" + root).digest()


def test_whatever_changes_behind_the_parts_is_found() -> None:
    for changed in bit_flips(pack(b"head", b"parts", b"root", b"keys"), 9):
        if changed[-8:] != METADATA_MAGIC:
            assert read(changed) is None  # another writer's, whose pickle this is not
            continue
        with pytest.raises(MetadataError):
            read(changed)


@pytest.mark.parametrize("data", [b"", b"x", b"a pickle of torch's" * 9, METADATA_MAGIC + b"\0"])
def test_other_files_have_no_trailer(data: bytes) -> None:
    assert read(data) is None


@pytest.mark.parametrize("size", [8, 40, 103])
def test_a_part_of_a_trailer(size: int) -> None:
    with pytest.raises(MetadataError, match="truncated"):
        read(pack(b"", b"", b"r", b"")[-size:])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"index_size": MAX_ROOT + 1}, "impossible sizes"),
        ({"index_size": 5}, "impossible sizes"),
        ({"index_size": 3}, "impossible sizes"),
        ({"head_size": 5}, "impossible sizes"),
        ({"parts_size": 4}, "impossible sizes"),
        ({"index_size": 3, "parts_size": 6}, "does not match"),
    ],
    ids=str,
)
def test_trailers_that_cannot_be(changes: dict[str, object], match: str) -> None:
    """More of them are among the vectors."""
    with pytest.raises(MetadataError, match=match):
        read(MetadataParts(b"head", b"root", b"keys", b"parts").change(**changes).pack())


@pytest.mark.parametrize("changes", [{}, {"reserved": b"1234"}])
@pytest.mark.parametrize("format_bytes", [(2, 1, 0, 0), (3, 1, 0, 0), (1, 2, 0, 0), (1, 1, 2, 0)])
def test_another_version_is_no_damage(format_bytes: tuple[int, ...], changes: dict[str, Any]) -> None:
    parts = MetadataParts(b"head", b"root", b"keys", b"parts", format_bytes=bytes(format_bytes))
    version, suite, flags, _ = format_bytes
    with pytest.raises(UnsupportedError, match=f"version {version}, suite {suite} and critical flags {flags}.*pgrade"):
        read(parts.change(**changes).pack())


def test_what_is_too_large_is_not_written() -> None:
    with pytest.raises(MetadataError, match="too large"):
        pack(b"", b"", bytes(MAX_ROOT + 1), b"")


def sections(keys: bytes) -> Sections:
    return Sections(memoryview(b"root"), memoryview(keys))


def test_the_lines_of_keys() -> None:
    keys = pack_keys("dek=1", "mac=2")
    assert keys == b"dek=1\nmac=2"
    assert sections(keys).key_lines() == ("dek=1", "mac=2")
    assert sections(b"").key_lines() is None
    most = b"x" * MAX_KEY_LINE
    assert sections(most + b"\n" + most).key_lines() == (most.decode(), most.decode())


@pytest.mark.parametrize(
    "keys",
    [
        *(b"x", b"x" * (MAX_KEY_LINE + 1) + b"\ny", b"x\n" + b"y" * (MAX_KEY_LINE + 1), b"\x80\ny", b"x\n\x80"),
        *(b"a\nb\n", b"a\nb\nc"),
    ],
)
def test_lines_that_are_malformed(keys: bytes) -> None:
    with pytest.raises(MetadataError, match=r"malformed|ASCII"):
        sections(keys).key_lines()


def test_fields_stand_where_the_page_says() -> None:
    data = pack(b"head", b"parts", b"root", b"key")
    fields = struct.unpack("<QQII4sI32s32s8s", data[-104:])
    assert fields[:6] == (4, 5, 4, 3, bytes([1, 1, 0, 0]), 0)
    assert fields[7] == hashlib.sha256(data[9:-40]).digest()
