"""Prefix and seal of a plain file."""

import hashlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamxf.errors import ContainerError, UnsupportedError
from streamxf.format import plain
from streamxf.format.limits import MAX_KEY_LINE
from tests.altered import bit_flips
from tests.forge import prefix_of, seal_of

texts = st.text(st.characters(max_codepoint=127), max_size=300)


@given(text=texts)
def test_the_prefix(text: str) -> None:
    packed = plain.pack_prefix(text)
    assert packed == prefix_of(text)
    assert plain.prefix_size(packed[:16]) == len(packed)
    assert plain.parse_prefix(packed) == (text, bytes([1, 1, 0, 0]))
    flagged = plain.pack_prefix(text, bytes([1, 1, 0, 9]))
    assert flagged == prefix_of(text, bytes([1, 1, 0, 9]))
    assert plain.parse_prefix(flagged) == (text, bytes([1, 1, 0, 9]))


@given(text=texts.filter(bool))
def test_the_seal(text: str) -> None:
    for digests in ([], [bytes(32)], [b"a" * 32, b"b" * 32]):
        packed = plain.pack_seal(text, b"".join(digests))
        assert packed == seal_of(text, digests=digests)
        assert plain.seal_size(packed[-20:]) == len(packed)
        assert plain.parse_seal(packed) == (text, b"".join(digests))


@pytest.mark.parametrize(
    ("packed", "parse"), [(plain.pack_prefix("dek"), plain.parse_prefix), (plain.pack_seal("mac"), plain.parse_seal)]
)
def test_whatever_changes_is_found(packed: bytes, parse: Callable[[bytes], object]) -> None:
    for wrong in (*bit_flips(packed), packed[:-1], packed[1:], packed + b"\0", b"\0" + packed, b""):
        with pytest.raises(ContainerError):
            parse(wrong)


def test_lengths_beyond_the_limit() -> None:
    start = prefix_of()[:12]
    assert plain.prefix_size(start + struct.pack("<I", MAX_KEY_LINE)) == MAX_KEY_LINE + 20
    with pytest.raises(ContainerError, match="65537 bytes of keys"):
        plain.prefix_size(start + struct.pack("<I", MAX_KEY_LINE + 1))
    end = seal_of("x")[-12:]
    assert plain.seal_size(struct.pack("<II", 3, MAX_KEY_LINE) + end) == 3 * 32 + MAX_KEY_LINE + 20
    for size in (0, MAX_KEY_LINE + 1):
        with pytest.raises(ContainerError, match=f"{size} bytes of vouchers"):
            plain.seal_size(struct.pack("<II", 0, size) + end)


@pytest.mark.parametrize("format_bytes", [(0, 1, 0, 0), (2, 1, 0, 0), (1, 0, 0, 0), (1, 2, 0, 0), (1, 1, 1, 0)])
def test_format_bytes_that_this_version_does_not_read(format_bytes: tuple[int, ...]) -> None:
    version, suite, critical, _ = format_bytes
    found = f"version {version}, suite {suite} and critical flags {critical}; this streamxf reads version 1, suite 1"
    with pytest.raises(UnsupportedError, match=found):
        plain.parse_prefix(prefix_of(b"", bytes(format_bytes)))
    with pytest.raises(ContainerError, match="CRC"):
        plain.parse_prefix(prefix_of()[:8] + bytes(format_bytes) + prefix_of()[12:])


def test_what_is_not_ascii() -> None:
    with pytest.raises(ContainerError, match="not ASCII"):
        plain.parse_prefix(prefix_of(b"dek=\x80"))
    with pytest.raises(ContainerError, match="not ASCII"):
        plain.parse_seal(seal_of(b"mac=\x80"))


def test_the_digest_that_is_vouched_for() -> None:
    for flags in (b"\0", b"\7"):
        covered = b"streamxf/1 plain" + bytes([1, 1, 0]) + flags + bytes(32)
        assert plain.contents_digest(bytes(32), bytes([1, 1, 0]) + flags) == hashlib.sha256(covered).digest()
