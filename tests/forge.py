"""An attacker's tool: takes a plain file apart by docs/format.md, and packs it again with every CRC right.

Only CRCs and lengths are made anew. Seals and payloads stay as they are: nobody without the key can make others.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace

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
            out += word + _crc(bind + struct.pack("<I", index) + word + payload) + payload
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
    prefix, data = file[:container_at], file[container_at:]
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
