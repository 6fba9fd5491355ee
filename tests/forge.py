"""An attacker's tool: takes files apart by docs/format.md, and packs them again with every CRC and digest right.

Only what needs no key is made again: CRCs, lengths, hashes and digests. Seals, payloads and vouchers stay as they are;
sealing.py has what a key holder can make.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import zstandard
from crc32c import crc32c

CONTAINER_MAGIC, FOOTER_MAGIC = b"\xd3SXF\r\n\x1a\n", b"\n\x1a\r\nFXS\xd3"
PLAIN_MAGIC, SEAL_MAGIC = b"\xd3SXK\r\n\x1a\n", b"\n\x1a\r\nKXS\xd3"
METADATA_MAGIC = b"\n\x1a\r\nMXS\xd3"
KEYED, BOUND, PUBLISHED, HASHED = 1, 2, 4, 8
LAST = 1 << 31

_FIXED = struct.Struct("<8sBBBBHH32s")


@dataclass(frozen=True)
class Parts:
    """A container in pieces, and what stands around it in a plain file. A block is (last, payload).

    What is None is computed when it is packed.
    """

    version: int = 1
    block_log2: int = 16
    flags: int = 0
    reserved: int = 0
    chain: bytes = b""
    identity: bytes = b""
    salt: bytes = bytes(32)
    seal: bytes = b""
    blocks: tuple[tuple[bool, bytes], ...] = ((True, b""),)
    raw_size: int = 0
    count: int | None = None
    container_size: int | None = None
    ends: tuple[int, ...] | None = None
    crcs: tuple[bytes, ...] | None = None
    """Of the blocks, where they are to be those of other blocks or places."""
    hashes: tuple[bytes, ...] | None = None
    prefix: bytes = b""
    tail: bytes = b""

    def change(self, **fields: object) -> Parts:
        return replace(self, **fields)

    @property
    def body(self) -> bytes:
        """The header before the seal."""
        fixed = (self.version, self.block_log2, self.flags, self.reserved, len(self.chain), len(self.identity))
        return _FIXED.pack(CONTAINER_MAGIC, *fixed, self.salt) + self.chain + self.identity

    @property
    def digest(self) -> bytes:
        """H."""
        return hashlib.sha256(self.body).digest()

    @property
    def table_digest(self) -> bytes:
        """T."""
        container = self.container()
        entries = 40 if self.flags & HASHED else 8
        start = len(container) - 32 - entries * len(self.blocks if self.ends is None else self.ends)
        return hashlib.sha256(self.digest + container[start:-12]).digest()

    def pack(self) -> bytes:
        """The plain file, with all its CRCs."""
        return self.prefix + self.container() + self.tail

    def container(self) -> bytes:
        """The container alone."""
        bind = self.digest[:16]
        out = with_crc(self.body + self.seal)
        ends, hashes = [], []
        for index, (last, payload) in enumerate(self.blocks):
            word = struct.pack("<I", (LAST if last else 0) | len(payload))
            crc = crc_of(bind + struct.pack("<I", index) + word + payload) if self.crcs is None else self.crcs[index]
            out += word + crc + payload
            ends.append(len(out))
            hashes.append(hashlib.sha256(word + crc + payload).digest() if self.flags & HASHED else b"")
        found = zip(ends if self.ends is None else self.ends, hashes if self.hashes is None else self.hashes)  # noqa: B905
        table = b"".join(struct.pack("<Q", end) + digest for end, digest in found)
        size = len(out) + len(table) + 32 if self.container_size is None else self.container_size
        count = len(ends) if self.count is None else self.count
        tail = table + struct.pack("<QQI", self.raw_size, size, count)
        return out + tail + crc_of(bind + tail) + FOOTER_MAGIC


def take_apart(file: bytes) -> Parts:
    """The pieces of an intact plain file."""
    start = 16 + int.from_bytes(file[8:12], "little")
    stop = len(file)
    if file[start + 10] & KEYED:
        stop -= 16 + int.from_bytes(file[-16:-12], "little")
    return take_container_apart(file[start:stop]).change(prefix=file[:start], tail=file[stop:])


def take_container_apart(data: bytes) -> Parts:
    """The pieces of an intact container."""
    _, version, block_log2, flags, reserved, chain_len, ident_len, salt = _FIXED.unpack_from(data)
    chain_at = _FIXED.size
    at = chain_at + chain_len + ident_len
    chain, identity = data[chain_at : chain_at + chain_len], data[chain_at + chain_len : at]
    seal = data[at : at + 32] if flags & KEYED else b""
    at += len(seal) + 4
    raw_size, _, count = struct.unpack_from("<QQI", data, len(data) - 32)
    blocks = []
    for _ in range(count):
        (word,) = struct.unpack_from("<I", data, at)
        size = word & ~LAST
        blocks.append((bool(word & LAST), data[at + 8 : at + 8 + size]))
        at += 8 + size
    return Parts(version, block_log2, flags, reserved, chain, identity, salt, seal, tuple(blocks), raw_size)


def identity_of(
    name: str | bytes,
    kind: int = 1,
    dtype: str | bytes = b"",
    offset: tuple[int, ...] = (),
    shard: tuple[int, ...] = (),
    tensor: tuple[int, ...] = (),
    *,
    writer: bytes = bytes(range(16)),
    ndim: int | None = None,
    dtype_len: int | None = None,
    reserved: int = 0,
) -> bytes:
    """An identity; `ndim` and `dtype_len` are what it says of itself, if that is not what it has."""
    dtype, name = (text.encode() if isinstance(text, str) else text for text in (dtype, name))
    counts = len(offset) if ndim is None else ndim, len(dtype) if dtype_len is None else dtype_len
    numbers = (*offset, *shard, *tensor)
    return writer + bytes([kind, *counts, reserved]) + dtype + struct.pack(f"<{len(numbers)}Q", *numbers) + name


def with_crc(data: bytes) -> bytes:
    """`data`, then its CRC, as prefix and header end."""
    return data + crc_of(data)


def prefix_of(wrapped: str | bytes = b"") -> bytes:
    """The prefix of a plain file, with a wrapped data key."""
    text = wrapped.encode("ascii") if isinstance(wrapped, str) else wrapped
    return with_crc(PLAIN_MAGIC + struct.pack("<I", len(text)) + text)


def seal_of(vouchers: str | bytes, size: int | None = None) -> bytes:
    """The seal of a plain file; `size` is what it says of itself."""
    text = vouchers.encode("ascii") if isinstance(vouchers, str) else vouchers
    return with_crc(text + struct.pack("<I", len(text) if size is None else size)) + SEAL_MAGIC


def crc_of(data: bytes) -> bytes:
    """A CRC as it is stored."""
    return struct.pack("<I", crc32c(data))


# -- faults at a place, and what they break made right again ---------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Where the pieces of an intact container stand, counted from its first byte."""

    body: int
    """Where the header's bytes before the seal end."""
    header_crc: int
    blocks: tuple[tuple[int, int], ...]
    """Each block's head, and the end of its payload."""
    table: int
    end: int
    hashed: bool

    @classmethod
    def of(cls, container: bytes) -> Places:
        _, _, _, flags, _, chain_len, ident_len, _ = _FIXED.unpack_from(container)
        body = _FIXED.size + chain_len + ident_len
        header_crc = body + (32 if flags & KEYED else 0)
        (count,) = struct.unpack_from("<I", container, len(container) - 16)
        entry = 40 if flags & HASHED else 8
        table = len(container) - 32 - entry * count
        ends = [struct.unpack_from("<Q", container, table + entry * number)[0] for number in range(count)]
        blocks = tuple(pairwise((header_crc + 4, *ends)))
        return cls(body, header_crc, blocks, table, len(container), bool(flags & HASHED))

    @property
    def crcs(self) -> set[int]:
        """The bytes that hold CRCs."""
        starts = [self.header_crc, *(head + 4 for head, _ in self.blocks), self.end - 12]
        return {byte for start in starts for byte in range(start, start + 4)}

    def mend(self, container: bytes) -> bytes:
        """`container`, in which bytes were altered where they stand, with all CRCs and hashes right again."""
        out = bytearray(container)
        out[self.header_crc : self.header_crc + 4] = crc_of(out[: self.header_crc])
        bind = hashlib.sha256(out[: self.body]).digest()[:16]
        for number, (head, end) in enumerate(self.blocks):
            covered = bind + struct.pack("<I", number) + out[head : head + 4] + out[head + 8 : end]
            out[head + 4 : head + 8] = crc_of(covered)
            if self.hashed:
                at = self.table + 40 * number + 8
                out[at : at + 32] = hashlib.sha256(out[head:end]).digest()
        out[self.end - 12 : self.end - 8] = crc_of(bind + out[self.table : self.end - 12])
        return bytes(out)


# -- metadata --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetadataParts:
    """A metadata file in pieces. `index` is JSON, or the frame as it is stored; what is None is computed."""

    pickled: bytes
    index: dict[str, Any] | bytes
    keys: bytes = b""
    index_size: int | None = None
    keys_size: int | None = None
    version: int = 1
    reserved: bytes = bytes(7)
    pickle_digest: bytes | None = None

    def change(self, **fields: object) -> MetadataParts:
        return replace(self, **fields)

    @property
    def packed_index(self) -> bytes:
        """The index as it is stored."""
        return self.index if isinstance(self.index, bytes) else pack_index(self.index)

    def pack(self) -> bytes:
        """The file, with its digests."""
        index = self.packed_index
        lengths = struct.pack(
            "<IIB7s",
            len(index) if self.index_size is None else self.index_size,
            len(self.keys) if self.keys_size is None else self.keys_size,
            self.version,
            self.reserved,
        )
        pickle_digest = hashlib.sha256(self.pickled).digest() if self.pickle_digest is None else self.pickle_digest
        covered = index + self.keys + lengths + pickle_digest
        return self.pickled + covered + hashlib.sha256(covered).digest() + METADATA_MAGIC


def split_metadata(data: bytes) -> MetadataParts:
    """The pieces of an intact metadata file."""
    index_size, keys_size = struct.unpack_from("<II", data, len(data) - 88)
    start = len(data) - 88 - keys_size - index_size
    index, keys = data[start : start + index_size], data[start + index_size : len(data) - 88]
    return MetadataParts(data[:start], json.loads(zstandard.ZstdDecompressor().decompress(index)), keys)


def pack_index(index: object) -> bytes:
    """An index as it is stored."""
    return frame_of(json.dumps(index, separators=(",", ":")).encode("ascii"))


def frame_of(data: bytes) -> bytes:
    """A Zstandard frame that declares its size."""
    return zstandard.ZstdCompressor(level=3, write_content_size=True).compress(data)
