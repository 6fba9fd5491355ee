"""The header's chain: descriptors that are not well formed, unknown or out of order."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from recipes.data import payload
from recipes.framing import HELD
from recipes.sealing import ENCRYPT, parts, seal, zstd
from recipes.vector import Vector, fails, reads

DATA = payload(100)
ZSTD, LZ4, CHECKSUM = "streamxf.zstd/1", "streamxf.lz4/1", "streamxf.checksum/1"


def vectors() -> list[Vector]:
    """All of them."""
    return [*_texts(), *_unknown(), *_descriptors(), *_orders()]


def _file(chain: Sequence[str]) -> bytes:
    return parts(chain, [zstd(DATA)], len(DATA)).pack()


def _texts() -> list[Vector]:
    """The text as a whole."""
    cases = [
        ("not-ascii", "a letter that is not ASCII", ["streamxf.zstd/1\xe9"]),
        ("fragment", "a fragment, which never stands in a header", [ZSTD + "#level=3"]),
        ("empty-line", "an empty descriptor between two", [CHECKSUM, "", ZSTD]),
        ("newline-at-end", "a newline after the last descriptor", [ZSTD, ""]),
        ("newline-alone", "a newline and no descriptor", ["", ""]),
        ("nine", "nine descriptors", [CHECKSUM] * 9),
        ("carriage-return", "a line that ends as on Windows", [ZSTD + "\r"]),
        ("nul", "a character 00", [ZSTD + "\0"]),
    ]
    data = DATA
    for _ in range(8):
        data += struct.pack("<I", crc32c(data))
    eight = [CHECKSUM] * 8
    return [
        *(fails(f"chain-{name}", about, chain, _file(chain), "chain") for name, about, chain in cases),
        reads("chain-eight", "eight descriptors, as many as there may be", eight, parts(eight, [data], 100).pack, DATA),
    ]


def _unknown() -> list[Vector]:
    cases = [
        ("streamxf", "a name of streamxf that no version knows", ["streamxf.unknown/1"]),
        ("somebody", "a name of somebody's", ["acme.unknown/1"]),
        ("stream-transform", "a stream transform of torch, which no plain file has", ["stream.zstd/1"]),
        ("before-a-codec", "a name of somebody's before a codec", ["acme.unknown/1", ZSTD]),
        ("version-2", "a later version of a codec", ["streamxf.zstd/2"]),
        ("version-65535", "the highest version that can be written", ["streamxf.zstd/65535"]),
    ]
    later = parts(["streamxf.encrypt/2"], [DATA], len(DATA))
    sealed = seal(parts(["acme.unknown/1", ENCRYPT], [DATA], len(DATA)))
    return [
        *(fails(f"codec-{name}", about, chain, _file(chain), "unknown-codec") for name, about, chain in cases),
        fails(
            "codec-encrypt-2",
            "a later version of encryption",
            ["streamxf.encrypt/2"],
            seal(later).pack(),
            "unknown-codec",
            keys=HELD,
        ),
        fails(
            "codec-unknown-and-sealed",
            "an unknown name under a seal that is right",
            ["acme.unknown/1", ENCRYPT],
            sealed.pack(),
            "unknown-codec",
            keys=HELD,
        ),
    ]


def _descriptors() -> list[Vector]:
    cases = [
        ("upper-case", "a capital in the name", "streamxf.Zstd/1"),
        ("one-part", "a name of one part", "zstd/1"),
        ("empty-part", "an empty part of the name", "streamxf..zstd/1"),
        ("digit-first", "a part that begins with a digit", "streamxf.7z/1"),
        ("name-of-65", "a name of 65 characters", "a." + "b" * 63 + "/1"),
        ("no-version", "no version", "streamxf.zstd"),
        ("version-empty", "nothing after the slash", "streamxf.zstd/"),
        ("version-0", "version 0", "streamxf.zstd/0"),
        ("version-01", "a zero before the version", "streamxf.zstd/01"),
        ("version-65536", "a version above 65535", "streamxf.zstd/65536"),
        ("version-not-decimal", "a version in another base", "streamxf.zstd/0x1"),
        ("space", "a space at the end", "streamxf.zstd/1 "),
        ("question-mark-alone", "nothing after the question mark", "streamxf.zstd/1?"),
        ("parameter-without-value", "a key and no equals sign", "streamxf.zstd/1?level"),
        ("parameter-twice", "a key that stands twice", "streamxf.zstd/1?level=3&level=3"),
        ("parameter-unknown", "a parameter that the codec does not have", "streamxf.zstd/1?speed=3"),
        ("parameter-percent", "a value with a character that no value has", "streamxf.zstd/1?level=%33"),
        ("level-23", "a level that does not exist", "streamxf.zstd/1?level=23"),
        ("level-not-a-number", "a level that is no number", "streamxf.zstd/1?level=high"),
        ("algorithm-unknown", "an algorithm that does not exist", "streamxf.checksum/1?algorithm=md5"),
        ("floatzip-with-parameter", "a parameter of a codec that has none", "streamxf.floatzip/1?width=2"),
    ]
    bound = ["streamxf.zstd/1?level=5"]
    with_parameter = ["streamxf.encrypt/1?mode=gcm"]
    return [
        *(fails(f"descriptor-{name}", about, [text], _file([text]), "descriptor") for name, about, text in cases),
        fails(
            "descriptor-encrypt-with-parameter",
            "a parameter of a codec that has none",
            with_parameter,
            seal(parts(with_parameter, [DATA], len(DATA))).pack(),
            "descriptor",
            keys=HELD,
        ),
        reads(
            "descriptor-level-bound",
            "what matters to encoding only may stand before the fragment",
            bound,
            parts(bound, [zstd(DATA)], len(DATA)).pack,
            DATA,
        ),
    ]


def _orders() -> list[Vector]:
    cases = [
        ("encrypt-twice", "encrypted twice", [ENCRYPT, ENCRYPT]),
        ("zstd-after-encrypt", "compressed after it was encrypted", [ENCRYPT, ZSTD]),
        ("lz4-after-encrypt", "compressed after a checksum after encryption", [ENCRYPT, CHECKSUM, LZ4]),
        ("floatzip-after-encrypt", "FloatZip after encryption", [ENCRYPT, "streamxf.floatzip/1"]),
    ]
    return [
        fails(f"chain-{name}", about, chain, seal(parts(chain, [DATA], len(DATA))).pack(), "chain", keys=HELD)
        for name, about, chain in cases
    ]
