"""Files that streamxf itself wrote, at the time when their codec was new; salts and data keys were drawn at random."""

from __future__ import annotations

import io
from functools import partial

from sealing import KEY, OTHER_KEY

import streamxf
from recipes.data import BLOCK, payload
from recipes.vector import HELD, NOTHING, OTHERS, Reader, Vector, holds
from streamxf import LZ4, Checksum, Encrypt, ZStandard

_FILES: list[tuple[str, list[streamxf.Codec], bytes, bytes | None]] = [
    ("empty", [], payload(0), None),
    ("none", [], payload(100), None),
    ("zstd", [ZStandard(3)], payload(5000), None),
    ("zstd-fast-two-blocks", [ZStandard(-7)], payload(BLOCK + 1), None),
    ("lz4", [LZ4()], payload(5000), None),
    ("lz4-high", [LZ4(12)], payload(5000), None),
    ("checksum-crc32c", [Checksum()], payload(1000), None),
    ("checksum-sha256", [Checksum("sha256")], payload(1000), None),
    ("encrypt", [Encrypt(KEY)], payload(1000), KEY),
    ("encrypt-empty", [Encrypt(KEY)], payload(0), KEY),
    ("full", [ZStandard(3), Checksum(), Encrypt(KEY)], payload(5000), KEY),
    ("full-three-blocks", [ZStandard(3), Checksum(), Encrypt(OTHER_KEY)], payload(2 * BLOCK + 77), OTHER_KEY),
    ("full-block-edge", [LZ4(9), Encrypt(KEY), Checksum("sha256")], payload(2 * BLOCK), KEY),
    ("six-codecs", [Checksum(), LZ4(), ZStandard(1), Checksum("sha256"), Encrypt(KEY), Checksum()], payload(3000), KEY),
]


def _write(codecs: list[streamxf.Codec], data: bytes) -> bytes:
    target = io.BytesIO()
    with streamxf.open(target, "wb", chain=codecs, block_size=BLOCK) as file:
        file.write(data)
    return target.getvalue()


def vectors() -> list[Vector]:
    """All of them."""
    return [
        holds(f"written-{name}", "written by streamxf.open", partial(_write, codecs, data), data, _READERS[key])
        for name, codecs, data, key in _FILES
    ]


_READERS: dict[bytes | None, Reader] = {None: NOTHING, KEY: HELD, OTHER_KEY: OTHERS}
