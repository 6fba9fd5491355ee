"""Payloads that no codec may take, and some that look odd and are right. Framing and CRCs are right in all of them."""

import struct
from collections.abc import Sequence
from typing import Any

import lz4.block
import zstandard
from crc32c import crc32c

from tests import floatzip_forge as fz
from tests.sealing import container, plain, zstd
from tests.vectors.recipes.data import BLOCK, numbers, payload

TEXT = b"some text, some text, some text. " * 20
LIMIT = BLOCK + BLOCK // 16 + 1024
MAGIC = b"\x28\xb5\x2f\xfd"


def file(chain: Sequence[str], stored: bytes, raw_size: int) -> bytes:
    return plain(container(chain, [stored], raw_size)).pack()


# -- zstd ------------------------------------------------------------------------------------------------------------


def rle(declared: int, blocks: Sequence[int], *, window: int | None = 0x58, dictionary: bytes = b"") -> bytes:
    """A frame by hand that declares `declared` bytes and has blocks of that many times the letter A.

    `window` is the descriptor of RFC 8878, 2 MiB by default; None for a single segment.
    """
    descriptor = 0x80 | (0x20 if window is None else 0) | (0, 1, 2, 0, 3)[len(dictionary)]
    head = bytes([descriptor]) + (b"" if window is None else bytes([window])) + dictionary
    heads = [(number == len(blocks) - 1) | 1 << 1 | size << 3 for number, size in enumerate(blocks)]
    body = b"".join(struct.pack("<I", word)[:3] + b"A" for word in heads)
    return MAGIC + head + struct.pack("<I", declared) + body


def of_zstd() -> dict[str, Any]:
    good = zstd(TEXT)
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    checked = zstandard.ZstdCompressor(write_content_size=True, write_checksum=True).compress(TEXT)
    size = len(TEXT)
    return locals()


def whole(codec: str, stored: bytes, data: bytes) -> bytes:
    return file([f"streamxf.{codec}/1"], stored, len(data))


# -- LZ4 -------------------------------------------------------------------------------------------------------------


def of_lz4() -> dict[str, Any]:
    chain = ["streamxf.lz4/1"]

    def lz4_block(data: bytes, store_size: bool = False) -> bytes:
        return lz4.block.compress(data, store_size=store_size)

    return locals()


# -- FloatZip --------------------------------------------------------------------------------------------------------

_COUNT = 101
DATA = numbers(2 * _COUNT, 2, 7)
_SPLIT = fz.Shape(2, True, 0, [(fz.ZSTD, 1), (fz.PACKED, 1)], base=110)
LEVELS = fz.Shape(2, True, 0, [(fz.RAW, 1), (fz.LEVELLED, 1)], base=100, levels=b"\1\2\3", period=3)
FIXED = fz.Shape(2, True, 0, [(fz.RAW, 1), (fz.FIXED, 1)], base=110, bits=3)
_RAW = fz.Shape(2, True, 0, [(fz.RAW, 2)])


def floatzip_payload(layout: int, raw_size: int, planes: Sequence[tuple[int, int]], data: bytes) -> bytes:
    """A payload by hand; `planes` has the two fields of each row of the table."""
    head = struct.pack("<BI", layout, raw_size) + b"".join(struct.pack("<BI", *row) for row in planes)
    return head + bytes(-len(head) % 8) + data


def packed_plane(base: int, places: Sequence[int], values: bytes, pairs: bytes, *, zeros: bytes = b"\0\0\0") -> bytes:
    return bytes([base]) + zeros + struct.pack(f"<I{len(places)}I", len(places), *places) + values + zstd(pairs)


def levelled(rows_log2: int, period: int, levels: bytes, packed: bytes, *, zeros: bytes = b"\0\0\0") -> bytes:
    frame = zstd(levels)
    return bytes([rows_log2]) + zeros + struct.pack("<II", period, len(frame)) + frame + packed


def fixed_plane(
    base: int, bits: int, gaps: bytes, values: bytes, *, zeros: bytes = b"\0\0", codes: bytes = b""
) -> bytes:
    """Of at most 512 elements, which have the codes 0, or others."""
    return bytes([base, bits]) + zeros + struct.pack("<I", len(gaps)) + codes.ljust(64 * bits, b"\0") + gaps + values


def of_bytes(coding: int, stored: bytes, count: int) -> bytes:
    """A payload of `count` elements of one byte, with one plane."""
    return floatzip_payload(0x40, count, [(coding, len(stored))], stored)


def high(coding: int, stored: bytes, count: int) -> bytes:
    """The same of elements of two bytes, whose low ones are stored as they are."""
    return floatzip_payload(0x41, 2 * count, [(0, count), (coding, len(stored))], bytes(count) + stored)


def of_floatzip() -> dict[str, Any]:
    chain = ["streamxf.floatzip/1"]
    raw = fz.forge(DATA, _RAW)
    size = len(DATA)
    five = bytes([0x21, 0x43, 0x05])  # of five elements of one byte
    ten, levels = zstd(bytes(10)), levelled(6, 1, b"\1\2", packed_plane(9, [], b"", five))
    return locals()


# -- checksum --------------------------------------------------------------------------------------------------------


def of_checksum() -> dict[str, Any]:
    crc, sha = "streamxf.checksum/1", "streamxf.checksum/1?algorithm=sha256"
    data = payload(100)
    digest = struct.pack("<I", crc32c(data))
    return locals()
