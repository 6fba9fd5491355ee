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
from tests.vectors.recipes.vector import Vector, breaks, holds

TEXT = b"some text, some text, some text. " * 20
LIMIT = BLOCK + BLOCK // 16 + 1024
MAGIC = b"\x28\xb5\x2f\xfd"


def vectors() -> list[Vector]:
    """All of them."""
    return [*_zstd(), *_lz4(), *_floatzip(), *_checksum()]


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


def _zstd() -> list[Vector]:
    good = zstd(TEXT)
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    checked = zstandard.ZstdCompressor(write_content_size=True, write_checksum=True).compress(TEXT)
    size = len(TEXT)
    bad = [
        ("two-frames", "two frames, each of half the text", zstd(TEXT[:330]) + zstd(TEXT[330:]), size),
        ("twice", "the same frame twice", good + good, size),
        ("no-content-size", "the frame does not declare its size", unsized, size),
        ("dictionary", "the frame asks for dictionary 7", _rle(100, [100], dictionary=b"\7"), 100),
        ("dictionary-4-bytes", "the frame asks for a dictionary", _rle(100, [100], dictionary=b"\0\0\0\1"), 100),
        ("skippable-before", "a skippable frame before the frame", skippable + good, size),
        ("skippable-after", "a skippable frame after the frame", good + skippable, size),
        ("skippable-alone", "a skippable frame alone", skippable, 0),
        ("trailing-byte", "a byte after the frame", good + b"\0", size),
        ("trailing-byte-after-nothing", "a byte after the frame of an empty block", zstd(b"") + b"\0", 0),
        ("cut", "the frame lacks its last byte", good[:-1], size),
        ("cut-of-nothing", "the frame of an empty block lacks its last byte", zstd(b"")[:-1], 0),
        ("window", "a window of 144 MiB", _rle(100, [100], window=0x89), 100),
        ("window-3-75-tib", "the largest window there is", _rle(100, [100], window=0xFF), 100),
        ("declares-a-byte-more-than-a-block", "b + 1 bytes", _rle(BLOCK + 1, [BLOCK + 1]), BLOCK),
        ("declares-4-gib", "2^32 - 1 bytes are declared", _rle(2**32 - 1, [100]), BLOCK),
        ("bomb", "128 blocks of 128 KiB, and all of it is declared", _rle(2**24, [2**17] * 128), BLOCK),
        ("hidden-bomb", "128 blocks of 128 KiB, of which 100 bytes are declared", _rle(100, [2**17] * 128), 100),
        ("holds-more", "the frame holds a byte more than it declares", _rle(99, [100]), 99),
        ("holds-less", "the frame holds a byte less than it declares", _rle(101, [100]), 101),
        ("declares-nothing", "the frame declares 0 bytes and holds 100", _rle(0, [100]), 0),
        ("wrong-checksum", "the frame's own checksum is wrong", checked[:-1] + bytes([checked[-1] ^ 1]), size),
        ("empty", "no payload", b"", 0),
        ("magic-alone", "a magic, and nothing after it", MAGIC, 0),
        ("not-a-frame", "the text as it is", TEXT, size),
        ("frame-of-version-7", "the magic of a format from before RFC 8878", b"\x27\xb5\x2f\xfd" + good[4:], size),
    ]
    stages = ["streamxf.checksum/1", "streamxf.zstd/1"]
    right = [
        ("checksum", "a frame with a checksum of its own", checked, TEXT),
        ("window-128-mib", "the largest window that is allowed", _rle(100, [100], window=0x88), b"A" * 100),
        ("single-segment", "a frame without a window", _rle(100, [100], window=None), b"A" * 100),
        ("many-blocks", "a frame of 100 blocks of one byte", _rle(100, [1] * 100), b"A" * 100),
    ]
    return [
        *(breaks("zstd", name, about, _file(["streamxf.zstd/1"], stored, raw)) for name, about, stored, raw in bad),
        breaks(
            "zstd",
            "stage-above-limit",
            "what zstd gives to the next codec is E + 1 bytes",
            _file(stages, _rle(LIMIT + 1, [LIMIT + 1]), BLOCK),
        ),
        *(_right("zstd", name, about, stored, data) for name, about, stored, data in right),
    ]


def _right(codec: str, name: str, about: str, stored: bytes, data: bytes) -> Vector:
    chain = [f"streamxf.{codec}/1"]
    return holds(f"{codec}-{name}", about, plain(container(chain, [stored], len(data))).pack, data)


# -- LZ4 -------------------------------------------------------------------------------------------------------------


def _lz4() -> list[Vector]:
    chain = ["streamxf.lz4/1"]
    good = lz4.block.compress(TEXT, store_size=False)
    many = lz4.block.compress(bytes(BLOCK + 1), store_size=False)
    bad = [
        ("empty", "no payload, not even a token", b"", 0),
        ("cut", "the block lacks its last byte", good[:-1], len(TEXT)),
        ("cut-in-literals", "more literals than there are", b"\xf0\xff", 270),
        ("cut-in-offset", "a match whose offset is cut", b"\x10A\1", 5),
        ("offset-before-start", "a match before the first byte", b"\x10A\2\0\x50AAAAA", 10),
        ("a-byte-more-than-a-block", "b + 1 bytes", many, BLOCK),
        ("bomb", "1 MiB of zeros", lz4.block.compress(bytes(2**20), store_size=False), BLOCK),
        ("with-size", "a size before the block, as the library writes by default", lz4.block.compress(TEXT), len(TEXT)),
    ]
    stored_only = b"\xf0" + bytes([100 - 15]) + TEXT[:100]
    return [
        *(breaks("lz4", name, about, _file(chain, data, raw)) for name, about, data, raw in bad),
        _right("lz4", "literals-alone", "no match", stored_only, TEXT[:100]),
        _right("lz4", "of-nothing", "a token alone is an empty block", b"\0", b""),
    ]


# -- FloatZip --------------------------------------------------------------------------------------------------------

_COUNT = 101
_DATA = numbers(2 * _COUNT, 2, 7)
_SPLIT = fz.Shape(2, True, 0, [(fz.ZSTD, 1), (fz.PACKED, 1)], base=110)
_LEVELS = fz.Shape(2, True, 0, [(fz.RAW, 1), (fz.LEVELLED, 1)], base=100, levels=b"\1\2\3", period=3)
_RAW = fz.Shape(2, True, 0, [(fz.RAW, 2)])


_RULES = {
    **dict.fromkeys(["bytes-rotated", "phase-2-of-2", "phase-7-of-1", "raw-size-above-block", "raw-size-2-32"], "Z1"),
    **dict.fromkeys(["no-element", "raw-size-0"], "Z2"),
    **dict.fromkeys(["lanes-above-width", "bytes-raw", "bytes-levelled"], "Z3"),
    **dict.fromkeys(["trailing-byte", "plane-too-small"], "Z4"),
    **dict.fromkeys(["plane-not-a-frame", "plane-of-two-frames"], "zstd"),
}


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


def _floatzip() -> list[Vector]:
    chain = ["streamxf.floatzip/1"]
    raw = fz.forge(_DATA, _RAW)
    split = fz.forge(_DATA, _SPLIT)
    size = len(_DATA)
    five = bytes([0x21, 0x43, 0x05])  # of five elements of one byte
    tail = struct.pack("<I", len(_DATA))
    ten, levels = zstd(bytes(10)), _levelled(6, 1, b"\1\2", _packed(9, [], b"", five))
    bad = [
        ("no-layout", "no payload, not even a layout", b"", 0),
        ("layout-without-bit-6", "bit 6 of the layout is 0", b"\x05" + raw[1:], size),
        ("layout-bit-7", "bit 7 of the layout is 1", b"\xc5" + raw[1:], size),
        ("bytes-rotated", "elements of one byte are rotated", _payload(0x44, 5, [(0, 5)], b"abcde"), 5),
        ("phase-2-of-2", "the phase is as large as an element", _payload(0x51, 8, [(4, 6)], b"abcdefgh"), 8),
        ("phase-7-of-1", "a phase with elements of one byte", _payload(0x78, 8, [(0, 1)], b"abcdefgh"), 8),
        ("layout-alone", "nothing after the layout", b"\x45", 0),
        ("cut-in-raw-size", "the payload ends inside raw_size", raw[:3], size),
        ("cut-in-table", "the payload ends inside the table", raw[:9], size),
        ("cut", "the last byte is missing", raw[:-1], size),
        ("trailing-byte", "a byte follows", raw + b"\0", size),
        ("raw-size-above-block", "raw_size is b + 1", b"\x45" + struct.pack("<I", BLOCK + 1) + raw[5:], BLOCK),
        ("raw-size-2-32", "raw_size is 2^32 - 1", b"\x45\xff\xff\xff\xff" + raw[5:], BLOCK),
        ("no-element", "one byte, and elements of two", _payload(0x45, 1, [(4, 0)], b"a"), 1),
        ("raw-size-0", "no byte, and elements of one", _payload(0x40, 0, [(0, 0)], b""), 0),
        ("lane-3", "a lane of 8 bytes", _payload(0x43, 8, [(12, 8)], b"abcdefgh"), 8),
        ("plane-bit-4", "a bit of a plane that means nothing", raw[:5] + bytes([raw[5] | 0x10]) + raw[6:], size),
        ("lanes-above-width", "lanes of 4 bytes, and elements of two", _payload(0x41, 8, [(8, 8)], b"abcdefgh"), 8),
        ("packed-lane-of-2", "a packed plane of a wider lane", b"\x45" + tail + bytes([6]) + raw[6:], size),
        ("levelled-lane-of-2", "a levelled plane of a wider lane", b"\x45" + tail + bytes([7]) + raw[6:], size),
        ("filling", "the zeros after the table are none", raw[:10] + b"\1" + raw[11:], size),
        (
            "plane-too-small",
            "a raw plane lacks a byte, which stands behind it",
            _payload(0x41, 6, [(4, 5)], b"abcdef"),
            6,
        ),
        ("plane-of-another-size", "a frame of 4 bytes for 5 elements", _bytes(1, zstd(b"abcd"), 5), 5),
        ("plane-not-a-frame", "a plane that is no frame", _bytes(1, b"abcde", 5), 5),
        ("plane-of-two-frames", "a plane of two frames", _bytes(1, zstd(b"abc") + zstd(b"de"), 5), 5),
        ("stored-size-2-32", "a plane of 2^32 - 1 bytes", _payload(0x41, 6, [(4, 2**32 - 1)], b"abcdef"), 6),
        ("packed-cut", "a packed plane of 7 bytes", _bytes(2, bytes(7), 5), 5),
        (
            "packed-reserved",
            "reserved bytes of a packed plane",
            _bytes(2, _packed(9, [], b"", five, zeros=b"\0\1\0"), 5),
            5,
        ),
        ("packed-place-5-of-5", "an exception outside of the plane", _bytes(2, _packed(9, [5], b"x", five), 5), 5),
        ("packed-places-fall", "places that do not rise", _bytes(2, _packed(9, [3, 1], b"xy", five), 5), 5),
        ("packed-places-equal", "a place that stands twice", _bytes(2, _packed(9, [3, 3], b"xy", five), 5), 5),
        ("packed-exceptions-2-32", "2^32 - 1 exceptions", _bytes(2, b"\x09\0\0\0\xff\xff\xff\xff" + zstd(five), 5), 5),
        (
            "packed-half-byte",
            "the half byte that no element needs",
            _bytes(2, _packed(9, [], b"", b"\x21\x43\x15"), 5),
            5,
        ),
        ("packed-too-few", "a frame of two bytes for five halves", _bytes(2, _packed(9, [], b"", b"\x21\x43"), 5), 5),
        (
            "packed-too-many",
            "a frame of four bytes for five halves",
            _bytes(2, _packed(9, [], b"", five + b"\0"), 5),
            5,
        ),
        ("levels-cut", "a levelled plane of 11 bytes", _high(3, b"\6" + bytes(10), 5), 10),
        (
            "levels-of-rows-of-128",
            "rows of another length",
            _high(3, _levelled(7, 1, b"\1\2", _packed(9, [], b"", five)), 5),
            10,
        ),
        (
            "levels-reserved",
            "reserved bytes of a levelled plane",
            _high(3, _levelled(6, 1, b"\1\2", _packed(9, [], b"", five), zeros=b"\0\0\1"), 5),
            10,
        ),
        ("levels-of-no-column", "no column", _high(3, _levelled(6, 0, b"\1", _packed(9, [], b"", five)), 5), 10),
        (
            "levels-of-65537-columns",
            "a column too many",
            _high(3, _levelled(6, 65537, bytes(65538), _packed(9, [], b"", five)), 5),
            10,
        ),
        ("levels-too-few", "levels for no column", _high(3, _levelled(6, 1, b"\1", _packed(9, [], b"", five)), 5), 10),
        (
            "levels-beyond-plane",
            "levels that reach beyond",
            _high(3, b"\6\0\0\0" + struct.pack("<II", 1, 99) + zstd(b"\1\2"), 5),
            10,
        ),
        ("levels-and-nothing", "nothing after the levels", _high(3, _levelled(6, 1, b"\1\2", b""), 5), 10),
        ("zstd-lane-of-2", "a compressed plane of a wider lane", _payload(0x41, 10, [(5, len(ten))], ten), 10),
        ("bytes-raw", "elements of one byte as they are", _bytes(0, b"abcde", 5), 5),
        ("bytes-levelled", "levels of elements of one byte", _bytes(3, levels, 5), 5),
    ]
    outer = ["streamxf.floatzip/1", "streamxf.zstd/1"]
    above = _file(outer, zstd(b"\0" + bytes(BLOCK + 1)), BLOCK)
    right = [
        ("by-hand-split", "planes of bf16, one packed", split, _DATA),
        ("by-hand-levels", "levels of rows and columns", fz.forge(_DATA, _LEVELS), _DATA),
        ("by-hand-raw", "one plane as it is", raw, _DATA),
        ("by-hand-bytes", "elements of one byte", _bytes(2, _packed(250, [1], b"x", five), 5), b"\xfbx\xfd\xfe\xff"),
        ("by-hand-wraps", "a base from which halves wrap", _bytes(2, _packed(255, [], b"", five), 5), b"\0\1\2\3\4"),
        ("by-hand-stored-nothing", "a layout 00 and no byte", b"\0", b""),
    ]
    return [
        *(
            breaks(_RULES.get(name, "floatzip"), name, about, _file(chain, data, raw_size))
            for name, about, data, raw_size in bad
        ),
        breaks("Z1", "stored-above-block", "b + 1 bytes as they are", above),
        *(_right("floatzip", name, about, stored, data) for name, about, stored, data in right),
    ]


# -- checksum --------------------------------------------------------------------------------------------------------


def _checksum() -> list[Vector]:
    crc, sha = "streamxf.checksum/1", "streamxf.checksum/1?algorithm=sha256"
    data = payload(100)
    digest = struct.pack("<I", crc32c(data))
    outer = [crc, "streamxf.zstd/1"]
    wide = lines(BLOCK) + b"x"
    cases = [
        ("wrong-crc", "a digest that is wrong", [crc], data + bytes(4), 100),
        ("crc-the-other-way-round", "the digest's bytes in the other order", [crc], data + digest[::-1], 100),
        ("wrong-sha256", "a digest that is wrong", [sha], data + bytes(32), 100),
        ("crc-where-sha256-belongs", "a digest of the other algorithm", [sha], data + digest, 72),
        ("too-short", "3 bytes, less than a digest", [crc], b"abc", 0),
        ("too-short-sha256", "31 bytes, less than a digest", [sha], bytes(31), 0),
        ("empty", "no payload", [crc], b"", 0),
        ("above-block", "b + 1 bytes and their digest", outer, zstd(wide + struct.pack("<I", crc32c(wide))), BLOCK),
    ]
    both = [crc, sha]
    inner = data + digest
    twice = container(both, [inner + hashlib.sha256(inner).digest()], 100)
    return [
        *(breaks("checksum", name, about, _file(chain, stored, raw)) for name, about, chain, stored, raw in cases),
        holds("checksum-twice", "a checksum of a checksum", plain(twice).pack, data),
    ]
