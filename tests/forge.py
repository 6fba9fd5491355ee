"""An attacker's tool: takes files apart by docs/format.md, and packs them again with every CRC and digest right.

Only what needs no key is made anew: CRCs, lengths, and the metadata's plain digest. Seals, payloads and MACs stay as
they are: nobody without the key can make others.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from crc32c import crc32c

_FIXED = struct.Struct("<8sBBBBHH32s")
LAST = 1 << 31


@dataclass(frozen=True)
class Parts:
    """A plain file in pieces. A block is (last, payload). What is None is computed when it is packed."""

    prefix: bytes
    version: int
    block_log2: int
    flags: int
    reserved: int
    chain: bytes
    identity: bytes
    salt: bytes
    seal: bytes
    blocks: tuple[tuple[bool, bytes], ...]
    raw_size: int
    count: int | None = None
    container_size: int | None = None
    ends: tuple[int, ...] | None = None
    crcs: tuple[bytes, ...] | None = None
    """Of the blocks, where they are to be those of other blocks or places."""

    def change(self, **fields: object) -> Parts:
        return replace(self, **fields)

    def pack(self) -> bytes:
        """The file, with all its CRCs."""
        return self.prefix + self.container()

    def container(self) -> bytes:
        fixed = (self.version, self.block_log2, self.flags, self.reserved, len(self.chain), len(self.identity))
        body = _FIXED.pack(b"\xd3SXF\r\n\x1a\n", *fixed, self.salt) + self.chain + self.identity
        bind = hashlib.sha256(body).digest()[:16]
        out = with_crc(body + self.seal)
        ends = []
        for index, (last, payload) in enumerate(self.blocks):
            word = struct.pack("<I", (LAST if last else 0) | len(payload))
            crc = _crc(bind + struct.pack("<I", index) + word + payload) if self.crcs is None else self.crcs[index]
            out += word + crc + payload
            ends.append(len(out))
        table = (
            struct.pack(f"<{len(ends)}Q", *ends)
            if self.ends is None
            else struct.pack(f"<{len(self.ends)}Q", *self.ends)
        )
        size = len(out) + len(table) + 32 if self.container_size is None else self.container_size
        count = len(ends) if self.count is None else self.count
        tail = table + struct.pack("<QQI", self.raw_size, size, count)
        return out + tail + _crc(bind + tail) + b"\n\x1a\r\nFXS\xd3"


def take_apart(file: bytes) -> Parts:
    """The pieces of an intact plain file."""
    container_at = 12 + int.from_bytes(file[8:12], "little") + 4
    return take_container_apart(file[container_at:], file[:container_at])


def take_container_apart(data: bytes, prefix: bytes = b"") -> Parts:
    """The pieces of an intact container."""
    _, version, block_log2, flags, reserved, chain_len, ident_len, salt = _FIXED.unpack_from(data)
    chain_at = _FIXED.size
    chain = data[chain_at : chain_at + chain_len]
    identity = data[chain_at + chain_len : chain_at + chain_len + ident_len]
    at = chain_at + chain_len + ident_len
    seal = data[at : at + 32] if flags & 1 else b""
    at += len(seal) + 4
    raw_size, _, count = struct.unpack_from("<QQI", data, len(data) - 32)
    blocks = []
    for _ in range(count):
        (word,) = struct.unpack_from("<I", data, at)
        size = word & ~LAST
        blocks.append((bool(word & LAST), data[at + 8 : at + 8 + size]))
        at += 8 + size
    return Parts(prefix, version, block_log2, flags, reserved, chain, identity, salt, seal, tuple(blocks), raw_size)


def with_crc(data: bytes) -> bytes:
    """`data`, then its CRC, as prefix and header end."""
    return data + _crc(data)


def prefix_of(fragment: bytes, padded: int = 512) -> bytes:
    """The prefix that holds a fragment."""
    fragment += bytes(-len(fragment) % padded)
    return with_crc(b"\xd3SXK\r\n\x1a\n" + struct.pack("<I", len(fragment)) + fragment)


def _crc(data: bytes) -> bytes:
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
    index: int
    end: int

    @classmethod
    def of(cls, container: bytes) -> Places:
        _, _, _, flags, _, chain_len, ident_len, _ = _FIXED.unpack_from(container)
        body = _FIXED.size + chain_len + ident_len
        header_crc = body + (32 if flags & 1 else 0)
        (count,) = struct.unpack_from("<I", container, len(container) - 16)
        index = len(container) - 32 - 8 * count
        ends = struct.unpack_from(f"<{count}Q", container, index)
        return cls(body, header_crc, tuple(pairwise((header_crc + 4, *ends))), index, len(container))

    @property
    def crcs(self) -> set[int]:
        """The bytes that hold CRCs."""
        starts = [self.header_crc, *(head + 4 for head, _ in self.blocks), self.end - 12]
        return {byte for start in starts for byte in range(start, start + 4)}

    def mend(self, container: bytes) -> bytes:
        """`container`, in which bytes were altered where they stand, with all CRCs right again."""
        out = bytearray(container)
        out[self.header_crc : self.header_crc + 4] = _crc(out[: self.header_crc])
        bind = hashlib.sha256(out[: self.body]).digest()[:16]
        for number, (head, end) in enumerate(self.blocks):
            covered = bind + struct.pack("<I", number) + out[head : head + 4] + out[head + 8 : end]
            out[head + 4 : head + 8] = _crc(covered)
        out[self.end - 12 : self.end - 8] = _crc(bind + out[self.index : self.end - 12])
        return bytes(out)


# -- metadata --------------------------------------------------------------------------------------------------------


def split_metadata(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """The pickle and the manifest of an intact metadata file."""
    size = int.from_bytes(data[-44:-40], "little")
    return data[: -44 - size], json.loads(data[-44 - size : -44])


def join_metadata(pickled: bytes, manifest: dict[str, Any] | bytes, size: int | None = None) -> bytes:
    """A metadata file with the tag that everybody can make, the plain digest."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest, separators=(",", ":")).encode()
    body = pickled + text + struct.pack("<I", len(text) if size is None else size)
    return body + hashlib.sha256(body).digest() + b"\n\x1a\r\nMXS\xd3"
