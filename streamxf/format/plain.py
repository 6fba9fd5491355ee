"""Prefix and seal around the container of a plain file; docs/format.md, "Plain file"."""

from __future__ import annotations

import hashlib
import struct

import crc32c

from streamxf.errors import ContainerError, UnsupportedError
from streamxf.format.header import format_fault
from streamxf.format.limits import DIGEST_BYTES, FORMAT, MAX_KEY_LINE, PLAIN_MAGIC, SEAL_MAGIC

PREFIX_START_BYTES = 16
SEAL_END_BYTES = 20

_WORD, _WORDS = struct.Struct("<I"), struct.Struct("<II")


def contents_digest(digests: bytes, format_bytes: bytes = FORMAT) -> bytes:
    """D of the format: the digest that a plain file's vouchers cover. `digests` is that of the container's header,
    table and footer, and in a signed file those of the blocks behind it.
    """
    return hashlib.sha256(b"streamxf/1 plain" + format_bytes + digests).digest()


def pack_prefix(wrapped: str, format_bytes: bytes = FORMAT) -> bytes:
    """The prefix, with the wrapped data key; empty for a chain that does not encrypt."""
    text = wrapped.encode("ascii")
    data = PLAIN_MAGIC + format_bytes + _WORD.pack(len(text)) + text
    return data + _WORD.pack(crc32c.crc32c(data))


def prefix_size(start: bytes) -> int:
    """The whole prefix's size in bytes, from its first 16; raises ContainerError if they begin no such file."""
    if len(start) < PREFIX_START_BYTES or start[:8] != PLAIN_MAGIC:
        raise ContainerError("this is not a file that streamxf.open wrote: it begins with other bytes")
    size = int(_WORD.unpack_from(start, 12)[0])
    if size > MAX_KEY_LINE:
        raise ContainerError(f"the file's prefix says it has {size} bytes of keys, {MAX_KEY_LINE} are allowed")
    return PREFIX_START_BYTES + size + _WORD.size


def parse_prefix(data: bytes) -> tuple[str, bytes]:
    """The wrapped data key and format bytes; ContainerError if damaged, UnsupportedError for another version."""
    if len(data) != prefix_size(data[:PREFIX_START_BYTES]):
        raise ContainerError("the file is truncated inside its prefix")
    wrapped = _checked(data, data[PREFIX_START_BYTES : -_WORD.size], "prefix")
    if fault := format_fault(data[8:12]):
        raise UnsupportedError(f"the file {fault}")
    return wrapped, data[8:12]


def pack_seal(vouchers: str, digests: bytes = b"") -> bytes:
    """What stands behind the container: the digests of a signed file, and the seal."""
    text = vouchers.encode("ascii")
    data = text + _WORD.pack(len(digests) // DIGEST_BYTES) + _WORD.pack(len(text))
    return digests + data + _WORD.pack(crc32c.crc32c(data)) + SEAL_MAGIC


def seal_size(end: bytes) -> int:
    """Bytes of seal and digests, from a file's last 20; raises ContainerError if they end no encrypted plain file."""
    if len(end) != SEAL_END_BYTES or end[12:] != SEAL_MAGIC:
        raise ContainerError("the file has no valid seal at its end: it was truncated or appended to")
    count, size = _WORDS.unpack_from(end)
    if not 1 <= size <= MAX_KEY_LINE:
        raise ContainerError(f"the file's seal says it has {size} bytes of vouchers, 1 to {MAX_KEY_LINE} are allowed")
    return int(count) * DIGEST_BYTES + int(size) + SEAL_END_BYTES


def parse_seal(data: bytes) -> tuple[str, bytes]:
    """The vouchers, and the digests that `data` begins with."""
    if len(data) != seal_size(data[-SEAL_END_BYTES:]):
        raise ContainerError("the file's seal has another size than it says")
    at = int(_WORD.unpack_from(data, len(data) - SEAL_END_BYTES)[0]) * DIGEST_BYTES
    return _checked(data[at : -len(SEAL_MAGIC)], data[at:-SEAL_END_BYTES], "seal"), data[:at]


def _checked(data: bytes, text: bytes, where: str) -> str:
    if _WORD.unpack(data[-_WORD.size :])[0] != crc32c.crc32c(data[: -_WORD.size]):
        raise ContainerError(f"the CRC of the file's {where} does not match: it is damaged")
    try:
        return text.decode("ascii")
    except UnicodeDecodeError:
        raise ContainerError(f"the file's {where} is not ASCII") from None
