"""A metadata file taken apart and put together; docs/format.md, "Metadata"."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from streamxf.errors import MetadataError
from streamxf.format.limits import DIGEST_BYTES, MAX_INDEX, MAX_KEY_LINE, MAX_KEYS, METADATA_MAGIC, TRAILER_BYTES

_LENGTHS = struct.Struct("<IIB7x")
_VERSION = 1
_SIGNED_BYTES = _LENGTHS.size + DIGEST_BYTES  # of the trailer: what its second digest covers


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last 88 bytes of a metadata file: sizes of the index and the keys before it, and digests."""

    index_size: int
    keys_size: int
    pickle_digest: bytes
    digest: bytes

    @property
    def size(self) -> int:
        return self.index_size + self.keys_size + TRAILER_BYTES

    @classmethod
    def parse(cls, end: bytes, file_size: int) -> Trailer | None:
        """Read the trailer from the last 88 bytes of a file, or all of it if it is smaller; None if it does not end in
        one. Raises MetadataError if it ends in one that cannot be.
        """
        if end[-len(METADATA_MAGIC) :] != METADATA_MAGIC:
            return None
        if len(end) < TRAILER_BYTES:
            raise MetadataError("the metadata is truncated: only a part of its trailer is there")
        fields = end[-TRAILER_BYTES:]
        index_size, keys_size, version = _LENGTHS.unpack_from(fields)
        if version != _VERSION or fields[9 : _LENGTHS.size] != bytes(7):
            raise MetadataError(
                f"the metadata's trailer has version {version}; this streamxf reads version {_VERSION}. Upgrade "
                "streamxf if it is newer"
            )
        digests = fields[_LENGTHS.size : _LENGTHS.size + 2 * DIGEST_BYTES]
        trailer = cls(index_size, keys_size, digests[:DIGEST_BYTES], digests[DIGEST_BYTES:])
        if not 1 <= index_size <= MAX_INDEX or keys_size > MAX_KEYS or trailer.size > file_size:
            raise MetadataError("the metadata's trailer has impossible sizes: the file is damaged")
        return trailer

    def split(self, tail: bytes) -> Sections:
        """Index and keys out of the file's last `size` bytes; raises MetadataError if their digest does not match."""
        view = memoryview(tail)
        signed = view[: self.index_size + self.keys_size + _SIGNED_BYTES]
        if not hmac.compare_digest(hashlib.sha256(signed).digest(), self.digest):
            raise MetadataError("the digest of the metadata does not match: the file is damaged")
        keys = view[self.index_size : self.index_size + self.keys_size]
        return Sections(view[: self.index_size], keys)


@dataclass(frozen=True, slots=True)
class Sections:
    """Index (a Zstandard frame) and keys (lines of ASCII, empty if not encrypted) of a metadata file, as they are
    stored.
    """

    index: memoryview
    keys: memoryview

    @property
    def digest(self) -> bytes:
        """D of the format: what vouchers are made for."""
        made = hashlib.sha256(b"streamxf/1 index")
        made.update(self.index)
        return made.digest()

    def key_lines(self) -> tuple[str, str] | None:
        """The wrapped data key and the vouchers of the process that published; None if there are no keys. Raises
        MetadataError if there are other bytes.
        """
        if not self.keys:
            return None
        start = bytes(self.keys[: 2 * MAX_KEY_LINE + 2])
        lines = start.split(b"\n", 2)
        if len(lines) < 2 or len(lines[0]) > MAX_KEY_LINE or len(lines[1]) > MAX_KEY_LINE:
            raise MetadataError("the metadata's keys are malformed")
        return _text(lines[0]), _text(lines[1])

    def other_key_lines(self) -> list[str]:
        return [_text(line) for line in bytes(self.keys).split(b"\n")[2:]]


def pack(pickled: bytes, index: bytes, keys: bytes) -> bytes:
    """A metadata file; raises MetadataError if it would be too large to be read."""
    if len(index) > MAX_INDEX or len(keys) > MAX_KEYS:
        raise MetadataError(
            f"the metadata would be too large: {len(index)} bytes of index ({MAX_INDEX} are allowed) and {len(keys)} "
            f"of keys ({MAX_KEYS}); save fewer items, or with fewer recipients"
        )
    lengths = _LENGTHS.pack(len(index), len(keys), _VERSION)
    signed = index + keys + lengths + hashlib.sha256(pickled).digest()
    return pickled + signed + hashlib.sha256(signed).digest() + METADATA_MAGIC


def pack_keys(wrapped: str, vouchers: str, others: list[str]) -> bytes:
    return "\n".join([wrapped, vouchers, *others]).encode("ascii")


def _text(line: bytes) -> str:
    try:
        return line.decode("ascii")
    except UnicodeDecodeError:
        raise MetadataError("the metadata's keys are not ASCII") from None
