"""The header's chain: descriptors that are not well formed, unknown or out of order."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from tests.sealing import ENCRYPT, container, keyed, plain, zstd
from tests.vectors.recipes.data import payload
from tests.vectors.recipes.vector import Made, under

DATA = payload(100)
ZSTD, LZ4, CHECKSUM = "streamxf.zstd/1", "streamxf.lz4/1", "streamxf.checksum/1"


def vectors() -> Made:
    """All of them."""
    return {**_chains(), **_descriptors(), **_unknown(), **_orders()}


def _file(chain: Sequence[str]) -> bytes:
    return plain(container(chain, [zstd(DATA)], len(DATA))).pack()


def _sealed(chain: Sequence[str]) -> bytes:
    return keyed(chain, [DATA], len(DATA)).pack()


def _chains() -> Made:
    """The chain as a whole."""
    cases = {"not-ascii": [ZSTD + "\xe9"], "fragment": [ZSTD + "#level=3"], "nine": [CHECKSUM] * 9}
    texts = {
        "empty-line": [CHECKSUM, "", ZSTD],
        "newline-at-end": [ZSTD, ""],
        "newline-alone": ["", ""],
        "carriage-return": [ZSTD + "\r"],
        "nul": [ZSTD + "\0"],
    }
    data = DATA
    for _ in range(8):
        data += struct.pack("<I", crc32c(data))
    eight = plain(container([CHECKSUM] * 8, [data], 100))
    return {
        **under("C1", {name: _file(chain) for name, chain in cases.items()}),
        **under("descriptor", {name: _file(chain) for name, chain in texts.items()}),
        "D5-reserved": _file(["!streamxf.zstd/1"]),
        "eight-codecs": eight.pack(),
    }


def _descriptors() -> Made:
    grammar = {
        "upper-case": "streamxf.Zstd/1",
        "one-part": "zstd/1",
        "empty-part": "streamxf..zstd/1",
        "digit-first": "streamxf.7z/1",
        "name-of-65": "a." + "b" * 63 + "/1",
        "no-version": "streamxf.zstd",
        "version-empty": "streamxf.zstd/",
        "version-0": "streamxf.zstd/0",
        "version-01": "streamxf.zstd/01",
        "version-65536": "streamxf.zstd/65536",
        "space": "streamxf.zstd/1 ",
        "question-mark-alone": "streamxf.zstd/1?",
        "parameter-without-value": "streamxf.checksum/1?algorithm",
        "parameter-twice": "streamxf.checksum/1?algorithm=sha256&algorithm=sha256",
        "parameter-percent": "streamxf.checksum/1?algorithm=%33",
    }
    sides = {
        "unknown": "streamxf.zstd/1?speed=3",
        "default": "streamxf.checksum/1?algorithm=crc32c",
        "side": "streamxf.zstd/1?level=5",
        "algorithm": "streamxf.checksum/1?algorithm=md5",
        "floatzip": "streamxf.floatzip/1?width=2",
        "order": "acme.unknown/1?b=1&a=1",
    }
    return {
        **under("descriptor", {name: _file([text]) for name, text in grammar.items()}),
        **under("D2", {name: _file([text]) for name, text in sides.items()}),
        "D2-encrypt": _sealed(["streamxf.encrypt/1?mode=gcm"]),
    }


def _unknown() -> Made:
    cases = {
        "reserved": ["streamxf.unknown/1"],
        "third-party": ["acme.unknown/1"],
        "unmarked-transform": ["stream.zstd/1"],
        "version-2": ["streamxf.zstd/2"],
        "version-65535": ["streamxf.zstd/65535"],
    }
    return {
        **under("D4", {name: _file(chain) for name, chain in cases.items()}),
        "D4-encrypt-2": _sealed(["streamxf.encrypt/2"]),
        "D4-sealed": _sealed(["acme.unknown/1", ENCRYPT]),
    }


def _orders() -> Made:
    cases = {
        "encrypt-twice": [ENCRYPT, ENCRYPT],
        "zstd-after-encrypt": [ENCRYPT, ZSTD],
        "lz4-after-encrypt": [ENCRYPT, CHECKSUM, LZ4],
        "floatzip-after-encrypt": [ENCRYPT, "streamxf.floatzip/1"],
    }
    return under("D6", {name: _sealed(chain) for name, chain in cases.items()})
