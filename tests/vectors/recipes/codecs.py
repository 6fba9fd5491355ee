"""Payloads that no codec may take, and some that look odd and are right. Framing and CRCs are right in all of them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import lz4.block
import zstandard
from crc32c import crc32c

from tests import floatzip_forge as fz
from tests.sealing import container, plain, zstd
from tests.vectors.recipes.data import BLOCK, lines, numbers, payload
from tests.vectors.recipes.vector import Made, under

TEXT = b"some text, some text, some text. " * 20
LIMIT = BLOCK + BLOCK // 16 + 1024
MAGIC = b"\x28\xb5\x2f\xfd"


def vectors() -> Made:
    """All of them."""
    return {**_zstd(), **_lz4(), **_floatzip(), **_checksum()}


def _file(chain: Sequence[str], stored: bytes, raw_size: int) -> bytes:
    return plain(container(chain, [stored], raw_size)).pack()


# -- zstd ------------------------------------------------------------------------------------------------------------


def _rle(declared: int, blocks: Sequence[int], *, window: int | None = 0x58, dictionary: bytes = b"") -> bytes:
    """A frame by hand that declares `declared` bytes and has blocks of that many times the letter A.

    `window` is the descriptor of RFC 8878, 2 MiB by default; None for a single segment.
    """
    descriptor = 0x80 | (0x20 if window is None else 0) | (0, 1, 2, 0, 3)[len(dictionary)]
    head = bytes([descriptor]) + (b"" if window is None else bytes([window])) + dictionary
    heads = [(number == len(blocks) - 1) | 1 << 1 | size << 3 for number, size in enumerate(blocks)]
    body = b"".join(struct.pack("<I", word)[:3] + b"A" for word in heads)
    return MAGIC + head + struct.pack("<I", declared) + body


def _zstd() -> Made:
    good = zstd(TEXT)
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    checked = zstandard.ZstdCompressor(write_content_size=True, write_checksum=True).compress(TEXT)
    size = len(TEXT)
    bad = {
        "two-frames": (zstd(TEXT[:330]) + zstd(TEXT[330:]), size),
        "twice": (good + good, size),
        "no-content-size": (unsized, size),
        "dictionary": (_rle(100, [100], dictionary=b"\7"), 100),
        "dictionary-4-bytes": (_rle(100, [100], dictionary=b"\0\0\0\1"), 100),
        "skippable-before": (skippable + good, size),
        "skippable-after": (good + skippable, size),
        "skippable-alone": (skippable, 0),
        "trailing-byte": (good + b"\0", size),
        "trailing-byte-after-nothing": (zstd(b"") + b"\0", 0),
        "cut": (good[:-1], size),
        "cut-of-nothing": (zstd(b"")[:-1], 0),
        "window": (_rle(100, [100], window=0x89), 100),
        "window-3-75-tib": (_rle(100, [100], window=0xFF), 100),
        "declares-a-byte-more-than-a-block": (_rle(BLOCK + 1, [BLOCK + 1]), BLOCK),
        "declares-4-gib": (_rle(2**32 - 1, [100]), BLOCK),
        "bomb": (_rle(2**24, [2**17] * 128), BLOCK),
        "hidden-bomb": (_rle(100, [2**17] * 128), 100),
        "holds-more": (_rle(99, [100]), 99),
        "holds-less": (_rle(101, [100]), 101),
        "declares-nothing": (_rle(0, [100]), 0),
        "wrong-checksum": (checked[:-1] + bytes([checked[-1] ^ 1]), size),
        "empty": (b"", 0),
        "magic-alone": (MAGIC, 0),
        "not-a-frame": (TEXT, size),
        "frame-of-version-7": (b"\x27\xb5\x2f\xfd" + good[4:], size),
    }
    stages = ["streamxf.checksum/1", "streamxf.zstd/1"]
    right = {
        "checksum": (checked, TEXT),
        "window-128-mib": (_rle(100, [100], window=0x88), b"A" * 100),
        "single-segment": (_rle(100, [100], window=None), b"A" * 100),
        "many-blocks": (_rle(100, [1] * 100), b"A" * 100),
    }
    return {
        **under("zstd", {name: _file(["streamxf.zstd/1"], stored, raw) for name, (stored, raw) in bad.items()}),
        "zstd-stage-above-limit": _file(stages, _rle(LIMIT + 1, [LIMIT + 1]), BLOCK),
        **under("zstd", {name: _right("zstd", stored, data) for name, (stored, data) in right.items()}),
    }


def _right(codec: str, stored: bytes, data: bytes) -> bytes:
    return _file([f"streamxf.{codec}/1"], stored, len(data))


# -- LZ4 -------------------------------------------------------------------------------------------------------------


def _lz4() -> Made:
    chain = ["streamxf.lz4/1"]
    good = lz4.block.compress(TEXT, store_size=False)
    many = lz4.block.compress(bytes(BLOCK + 1), store_size=False)
    bad = {
        "empty": (b"", 0),
        "cut": (good[:-1], len(TEXT)),
        "cut-in-literals": (b"\xf0\xff", 270),
        "cut-in-offset": (b"\x10A\1", 5),
        "offset-before-start": (b"\x10A\2\0\x50AAAAA", 10),
        "a-byte-more-than-a-block": (many, BLOCK),
        "bomb": (lz4.block.compress(bytes(2**20), store_size=False), BLOCK),
        "with-size": (lz4.block.compress(TEXT), len(TEXT)),
    }
    stored_only = b"\xf0" + bytes([100 - 15]) + TEXT[:100]
    return {
        **under("lz4", {name: _file(chain, data, raw) for name, (data, raw) in bad.items()}),
        "lz4-literals-alone": _right("lz4", stored_only, TEXT[:100]),
        "lz4-of-nothing": _right("lz4", b"\0", b""),
    }


# -- FloatZip --------------------------------------------------------------------------------------------------------

_COUNT = 101
_DATA = numbers(2 * _COUNT, 2, 7)
_SPLIT = fz.Shape(2, True, 0, [(fz.ZSTD, 1), (fz.PACKED, 1)], base=110)
_LEVELS = fz.Shape(2, True, 0, [(fz.RAW, 1), (fz.LEVELLED, 1)], base=100, levels=b"\1\2\3", period=3)
_RAW = fz.Shape(2, True, 0, [(fz.RAW, 2)])


def _payload(layout: int, raw_size: int, planes: Sequence[tuple[int, int]], data: bytes) -> bytes:
    """A payload by hand; `planes` has the two fields of each row of the table."""
    head = struct.pack("<BI", layout, raw_size) + b"".join(struct.pack("<BI", *row) for row in planes)
    return head + bytes(-len(head) % 8) + data


def _packed(base: int, places: Sequence[int], values: bytes, pairs: bytes, *, zeros: bytes = b"\0\0\0") -> bytes:
    return bytes([base]) + zeros + struct.pack(f"<I{len(places)}I", len(places), *places) + values + zstd(pairs)


def _levelled(rows_log2: int, period: int, levels: bytes, packed: bytes, *, zeros: bytes = b"\0\0\0") -> bytes:
    frame = zstd(levels)
    return bytes([rows_log2]) + zeros + struct.pack("<II", period, len(frame)) + frame + packed


def _bytes(coding: int, stored: bytes, count: int) -> bytes:
    """A payload of `count` elements of one byte, with one plane."""
    return _payload(0x40, count, [(coding, len(stored))], stored)


def _high(coding: int, stored: bytes, count: int) -> bytes:
    """The same of elements of two bytes, whose low ones are stored as they are."""
    return _payload(0x41, 2 * count, [(0, count), (coding, len(stored))], bytes(count) + stored)


def _floatzip() -> Made:
    chain = ["streamxf.floatzip/1"]
    raw = fz.forge(_DATA, _RAW)
    split = fz.forge(_DATA, _SPLIT)
    size = len(_DATA)
    five = bytes([0x21, 0x43, 0x05])  # of five elements of one byte
    tail = struct.pack("<I", len(_DATA))
    ten, levels = zstd(bytes(10)), _levelled(6, 1, b"\1\2", _packed(9, [], b"", five))
    bad = {
        "floatzip-no-layout": (b"", 0),
        "floatzip-layout-without-bit-6": (b"\x05" + raw[1:], size),
        "floatzip-layout-bit-7": (b"\xc5" + raw[1:], size),
        "Z1-bytes-rotated": (_payload(0x44, 5, [(0, 5)], b"abcde"), 5),
        "Z1-phase-2-of-2": (_payload(0x51, 8, [(4, 6)], b"abcdefgh"), 8),
        "Z1-phase-7-of-1": (_payload(0x78, 8, [(0, 1)], b"abcdefgh"), 8),
        "floatzip-layout-alone": (b"\x45", 0),
        "floatzip-cut-in-raw-size": (raw[:3], size),
        "floatzip-cut-in-table": (raw[:9], size),
        "floatzip-cut": (raw[:-1], size),
        "Z4-trailing-byte": (raw + b"\0", size),
        "Z1-raw-size-above-block": (b"\x45" + struct.pack("<I", BLOCK + 1) + raw[5:], BLOCK),
        "Z1-raw-size-2-32": (b"\x45\xff\xff\xff\xff" + raw[5:], BLOCK),
        "Z2-no-element": (_payload(0x45, 1, [(4, 0)], b"a"), 1),
        "Z2-raw-size-0": (_payload(0x40, 0, [(0, 0)], b""), 0),
        "floatzip-lane-3": (_payload(0x43, 8, [(12, 8)], b"abcdefgh"), 8),
        "floatzip-plane-bit-4": (raw[:5] + bytes([raw[5] | 0x10]) + raw[6:], size),
        "Z3-lanes-above-width": (_payload(0x41, 8, [(8, 8)], b"abcdefgh"), 8),
        "floatzip-packed-lane-of-2": (b"\x45" + tail + bytes([6]) + raw[6:], size),
        "floatzip-levelled-lane-of-2": (b"\x45" + tail + bytes([7]) + raw[6:], size),
        "floatzip-filling": (raw[:10] + b"\1" + raw[11:], size),
        "Z4-plane-too-small": (_payload(0x41, 6, [(4, 5)], b"abcdef"), 6),
        "floatzip-plane-of-another-size": (_bytes(1, zstd(b"abcd"), 5), 5),
        "zstd-plane-not-a-frame": (_bytes(1, b"abcde", 5), 5),
        "zstd-plane-of-two-frames": (_bytes(1, zstd(b"abc") + zstd(b"de"), 5), 5),
        "floatzip-stored-size-2-32": (_payload(0x41, 6, [(4, 2**32 - 1)], b"abcdef"), 6),
        "floatzip-packed-cut": (_bytes(2, bytes(7), 5), 5),
        "floatzip-packed-reserved": (_bytes(2, _packed(9, [], b"", five, zeros=b"\0\1\0"), 5), 5),
        "floatzip-packed-place-5-of-5": (_bytes(2, _packed(9, [5], b"x", five), 5), 5),
        "floatzip-packed-places-fall": (_bytes(2, _packed(9, [3, 1], b"xy", five), 5), 5),
        "floatzip-packed-places-equal": (_bytes(2, _packed(9, [3, 3], b"xy", five), 5), 5),
        "floatzip-packed-exceptions-2-32": (_bytes(2, b"\x09\0\0\0\xff\xff\xff\xff" + zstd(five), 5), 5),
        "floatzip-packed-half-byte": (_bytes(2, _packed(9, [], b"", b"\x21\x43\x15"), 5), 5),
        "floatzip-packed-too-few": (_bytes(2, _packed(9, [], b"", b"\x21\x43"), 5), 5),
        "floatzip-packed-too-many": (_bytes(2, _packed(9, [], b"", five + b"\0"), 5), 5),
        "floatzip-levels-cut": (_high(3, b"\6" + bytes(10), 5), 10),
        "floatzip-levels-of-rows-of-128": (_high(3, _levelled(7, 1, b"\1\2", _packed(9, [], b"", five)), 5), 10),
        "floatzip-levels-reserved": (
            _high(3, _levelled(6, 1, b"\1\2", _packed(9, [], b"", five), zeros=b"\0\0\1"), 5),
            10,
        ),
        "floatzip-levels-of-no-column": (_high(3, _levelled(6, 0, b"\1", _packed(9, [], b"", five)), 5), 10),
        "floatzip-levels-of-65537-columns": (
            _high(3, _levelled(6, 65537, bytes(65538), _packed(9, [], b"", five)), 5),
            10,
        ),
        "floatzip-levels-too-few": (_high(3, _levelled(6, 1, b"\1", _packed(9, [], b"", five)), 5), 10),
        "floatzip-levels-beyond-plane": (_high(3, b"\6\0\0\0" + struct.pack("<II", 1, 99) + zstd(b"\1\2"), 5), 10),
        "floatzip-levels-and-nothing": (_high(3, _levelled(6, 1, b"\1\2", b""), 5), 10),
        "floatzip-zstd-lane-of-2": (_payload(0x41, 10, [(5, len(ten))], ten), 10),
        "Z3-bytes-raw": (_bytes(0, b"abcde", 5), 5),
        "Z3-bytes-levelled": (_bytes(3, levels, 5), 5),
    }
    outer = ["streamxf.floatzip/1", "streamxf.zstd/1"]
    above = _file(outer, zstd(b"\0" + bytes(BLOCK + 1)), BLOCK)
    right = {
        "by-hand-split": (split, _DATA),
        "by-hand-levels": (fz.forge(_DATA, _LEVELS), _DATA),
        "by-hand-raw": (raw, _DATA),
        "by-hand-bytes": (_bytes(2, _packed(250, [1], b"x", five), 5), b"\xfbx\xfd\xfe\xff"),
        "by-hand-wraps": (_bytes(2, _packed(255, [], b"", five), 5), b"\0\1\2\3\4"),
        "by-hand-stored-nothing": (b"\0", b""),
    }
    return {
        **{name: _file(chain, data, raw_size) for name, (data, raw_size) in bad.items()},
        "Z1-stored-above-block": above,
        **under("floatzip", {name: _right("floatzip", stored, data) for name, (stored, data) in right.items()}),
    }


# -- checksum --------------------------------------------------------------------------------------------------------


def _checksum() -> Made:
    crc, sha = "streamxf.checksum/1", "streamxf.checksum/1?algorithm=sha256"
    data = payload(100)
    digest = struct.pack("<I", crc32c(data))
    outer = [crc, "streamxf.zstd/1"]
    wide = lines(BLOCK) + b"x"
    cases = {
        "wrong-crc": ([crc], data + bytes(4), 100),
        "crc-the-other-way-round": ([crc], data + digest[::-1], 100),
        "wrong-sha256": ([sha], data + bytes(32), 100),
        "crc-where-sha256-belongs": ([sha], data + digest, 72),
        "too-short": ([crc], b"abc", 0),
        "too-short-sha256": ([sha], bytes(31), 0),
        "empty": ([crc], b"", 0),
        "above-block": (outer, zstd(wide + struct.pack("<I", crc32c(wide))), BLOCK),
    }
    both = [crc, sha]
    inner = data + digest
    twice = container(both, [inner + hashlib.sha256(inner).digest()], 100)
    return {
        **under("checksum", {name: _file(chain, stored, raw) for name, (chain, stored, raw) in cases.items()}),
        "checksum-twice": plain(twice).pack(),
    }
