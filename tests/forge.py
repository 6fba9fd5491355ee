"""An attacker's tool: takes files apart by docs/format.md, and packs them again with every CRC and digest right.

Only what needs no key is made again: CRCs, lengths, hashes and digests. Seals, payloads and vouchers stay as they are;
sealing.py has what a key holder can make.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import zstandard
from crc32c import crc32c

CONTAINER_MAGIC, FOOTER_MAGIC = b"\xd3SXF\r\n\x1a\n", b"\n\x1a\r\nFXS\xd3"
PLAIN_MAGIC, SEAL_MAGIC = b"\xd3SXK\r\n\x1a\n", b"\n\x1a\r\nKXS\xd3"
METADATA_MAGIC = b"\n\x1a\r\nMXS\xd3"
KEYED, BOUND, PUBLISHED, HASHED = 1, 2, 4, 8
LAST = 1 << 31
FORMAT = bytes([1, 1, 0, 0])

_FIXED = struct.Struct("<8sBBBBBHH16s")


@dataclass(frozen=True)
class Parts:
    """A container in pieces, and what stands around it in a plain file. A block is (last, payload).

    What is None is computed when it is packed.
    """

    version: int = 1
    suite: int = 1
    flags: int = 0
    informative: int = 0
    block_log2: int = 16
    chain: bytes = b""
    identity: bytes = b""
    salt: bytes = bytes(16)
    seal: bytes = b""
    blocks: tuple[tuple[bool, bytes], ...] = ((True, b""),)
    raw_size: int = 0
    lengths: tuple[int, ...] | None = None
    """What the table says of the blocks' payloads."""
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
        format_bytes = self.version, self.suite, self.flags, self.informative
        sizes = self.block_log2, len(self.chain), len(self.identity)
        return _FIXED.pack(CONTAINER_MAGIC, *format_bytes, *sizes, self.salt) + self.chain + self.identity

    @property
    def digest(self) -> bytes:
        """H."""
        return hashlib.sha256(self.body).digest()

    @property
    def table_digest(self) -> bytes:
        """T."""
        return hashlib.sha256(self.digest + self._tail()).digest()

    def pack(self) -> bytes:
        """The plain file, with all its CRCs."""
        return self.prefix + self.container() + self.tail

    def container(self) -> bytes:
        """The container alone."""
        bind = self.digest[:16]
        tail = self._tail()
        return with_crc(self.body + self.seal) + b"".join(self._stored()) + tail + crc_of(bind + tail) + FOOTER_MAGIC

    def _stored(self) -> list[bytes]:
        """The blocks with their heads."""
        bind, made = self.digest[:16], []
        for index, (last, payload) in enumerate(self.blocks):
            word = struct.pack("<I", (LAST if last else 0) | len(payload))
            crc = crc_of(bind + struct.pack("<I", index) + word + payload) if self.crcs is None else self.crcs[index]
            made.append(word + crc + payload)
        return made

    def _tail(self) -> bytes:
        """The table, and the stream's size."""
        stored = self._stored()
        hashes = [hashlib.sha256(block).digest() if self.flags & HASHED else b"" for block in stored]
        lengths = [len(block) - 8 for block in stored] if self.lengths is None else self.lengths
        more = [bytes(32) if self.flags & HASHED else b""] * len(lengths)  # of which only those are used that lack
        entries = zip(lengths, [*(hashes if self.hashes is None else self.hashes), *more], strict=False)
        return b"".join(struct.pack("<I", length) + each for length, each in entries) + struct.pack("<Q", self.raw_size)


def take_apart(file: bytes) -> Parts:
    """The pieces of an intact plain file."""
    start = 20 + int.from_bytes(file[12:16], "little")
    stop = len(file)
    if file[start + 10] & KEYED:
        stop -= 16 + int.from_bytes(file[-16:-12], "little")
    return take_container_apart(file[start:stop]).change(prefix=file[:start], tail=file[stop:])


def take_container_apart(data: bytes) -> Parts:
    """The pieces of an intact container."""
    _, *format_bytes, block_log2, chain_len, ident_len, salt = _FIXED.unpack_from(data)
    flags = format_bytes[2]
    chain_at = _FIXED.size
    at = chain_at + chain_len + ident_len
    chain, identity = data[chain_at : chain_at + chain_len], data[chain_at + chain_len : at]
    seal = data[at : at + 32] if flags & KEYED else b""
    at += len(seal) + 4
    (raw_size,) = struct.unpack_from("<Q", data, len(data) - 20)
    blocks: list[tuple[bool, bytes]] = []
    while not blocks or not blocks[-1][0]:
        (word,) = struct.unpack_from("<I", data, at)
        size = word & ~LAST
        blocks.append((bool(word & LAST), data[at + 8 : at + 8 + size]))
        at += 8 + size
    return Parts(*format_bytes, block_log2, chain, identity, salt, seal, tuple(blocks), raw_size)


def _count(raw_size: int, block_log2: int) -> int:
    """The number of blocks of a stream."""
    return max(1, (raw_size + (1 << block_log2) - 1) >> block_log2)


def identity_of(
    name: str | bytes,
    kind: int = 1,
    dtype: str | bytes = b"",
    offset: tuple[int, ...] = (),
    shard: tuple[int, ...] = (),
    tensor: tuple[int, ...] = (),
    *,
    writer: bytes = bytes(range(16)),
    number: int = 0,
    ndim: int | None = None,
    dtype_len: int | None = None,
    width: int | None = None,
) -> bytes:
    """An identity; `ndim`, `dtype_len` and `width` are what it says of itself, if that is not what it has."""
    dtype, name = (text.encode() if isinstance(text, str) else text for text in (dtype, name))
    counts = len(offset) if ndim is None else ndim, len(dtype) if dtype_len is None else dtype_len
    numbers = (*offset, *shard, *tensor)
    least = next(size for size in (1, 2, 4, 8) if max(numbers, default=0) < 1 << 8 * size)
    used = least if width is None else width
    packed = b"".join(each.to_bytes(used if used in (1, 2, 4, 8) else least, "little") for each in numbers)
    return writer + struct.pack("<Q", number) + bytes([kind, *counts, used]) + dtype + packed + name


def with_crc(data: bytes) -> bytes:
    """`data`, then its CRC, as prefix and header end."""
    return data + crc_of(data)


def prefix_of(wrapped: str | bytes = b"", format_bytes: bytes = FORMAT) -> bytes:
    """The prefix of a plain file, with a wrapped data key."""
    text = wrapped.encode("ascii") if isinstance(wrapped, str) else wrapped
    return with_crc(PLAIN_MAGIC + format_bytes + struct.pack("<I", len(text)) + text)


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
        _, _, _, flags, _, block_log2, chain_len, ident_len, _ = _FIXED.unpack_from(container)
        body = _FIXED.size + chain_len + ident_len
        header_crc = body + (32 if flags & KEYED else 0)
        count = _count(struct.unpack_from("<Q", container, len(container) - 20)[0], block_log2)
        entry = 36 if flags & HASHED else 4
        table = len(container) - 20 - entry * count
        sizes = [8 + struct.unpack_from("<I", container, table + entry * number)[0] for number in range(count)]
        blocks = tuple(pairwise(accumulate(sizes, initial=header_crc + 4)))
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
                at = self.table + 36 * number + 4
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
    format_bytes: bytes = FORMAT
    reserved: bytes = bytes(4)
    head_digest: bytes | None = None

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
            "<II4s4s",
            len(index) if self.index_size is None else self.index_size,
            len(self.keys) if self.keys_size is None else self.keys_size,
            self.format_bytes,
            self.reserved,
        )
        head_digest = hashlib.sha256(self.pickled).digest() if self.head_digest is None else self.head_digest
        covered = index + self.keys + lengths + head_digest
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
