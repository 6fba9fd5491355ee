"""The header's chain: descriptors that are not well formed, unknown or out of order."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from tests.sealing import ENCRYPT, container, keyed, plain, zstd
from tests.vectors.recipes.data import payload
from tests.vectors.recipes.vector import HELD, Vector, breaks, holds

DATA = payload(100)
ZSTD, LZ4, CHECKSUM = "streamxf.zstd/1", "streamxf.lz4/1", "streamxf.checksum/1"


def vectors() -> list[Vector]:
    """All of them."""
    return [*_chains(), *_descriptors(), *_unknown(), *_orders()]


def _file(chain: Sequence[str]) -> bytes:
    return plain(container(chain, [zstd(DATA)], len(DATA))).pack()


def _sealed(chain: Sequence[str]) -> bytes:
    return keyed(chain, [DATA], len(DATA)).pack()


def _chains() -> list[Vector]:
    """The chain as a whole."""
    cases = [
        ("not-ascii", "a letter that is not ASCII", [ZSTD + "\xe9"]),
        ("fragment", "a fragment, which a header never has", [ZSTD + "#level=3"]),
        ("nine", "nine descriptors", [CHECKSUM] * 9),
    ]
    texts = [
        ("empty-line", "an empty descriptor between two", [CHECKSUM, "", ZSTD]),
        ("newline-at-end", "a newline after the last descriptor", [ZSTD, ""]),
        ("newline-alone", "a newline and no descriptor", ["", ""]),
        ("carriage-return", "a line that ends as on Windows", [ZSTD + "\r"]),
        ("nul", "a character 00", [ZSTD + "\0"]),
    ]
    data = DATA
    for _ in range(8):
        data += struct.pack("<I", crc32c(data))
    eight = plain(container([CHECKSUM] * 8, [data], 100))
    return [
        *(breaks("C1", name, about, _file(chain)) for name, about, chain in cases),
        *(breaks("descriptor", name, about, _file(chain)) for name, about, chain in texts),
        breaks("D5", "reserved", "a stream transform with a reserved name", _file(["!streamxf.zstd/1"])),
        holds("eight-codecs", "eight descriptors, as many as there may be", eight.pack, DATA),
    ]


def _descriptors() -> list[Vector]:
    grammar = [
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
        ("space", "a space at the end", "streamxf.zstd/1 "),
        ("question-mark-alone", "nothing after the question mark", "streamxf.zstd/1?"),
        ("parameter-without-value", "a key without an equals sign", "streamxf.checksum/1?algorithm"),
        ("parameter-twice", "a key that stands twice", "streamxf.checksum/1?algorithm=sha256&algorithm=sha256"),
        ("parameter-percent", "a value with a character that no value has", "streamxf.checksum/1?algorithm=%33"),
    ]
    sides = [
        ("unknown", "a parameter that the codec does not have", "streamxf.zstd/1?speed=3"),
        ("default", "a parameter that has its default", "streamxf.checksum/1?algorithm=crc32c"),
        ("side", "a parameter of encoding before the fragment", "streamxf.zstd/1?level=5"),
        ("algorithm", "an algorithm that does not exist", "streamxf.checksum/1?algorithm=md5"),
        ("floatzip", "a parameter of a codec that has none", "streamxf.floatzip/1?width=2"),
        ("order", "parameters that are out of order", "acme.unknown/1?b=1&a=1"),
    ]
    return [
        *(breaks("descriptor", name, about, _file([text])) for name, about, text in grammar),
        *(breaks("D2", name, about, _file([text])) for name, about, text in sides),
        breaks("D2", "encrypt", "a parameter of a codec that has none", _sealed(["streamxf.encrypt/1?mode=gcm"]), HELD),
    ]


def _unknown() -> list[Vector]:
    cases = [
        ("reserved", "a name of streamxf that no version knows", ["streamxf.unknown/1"]),
        ("third-party", "a third party's name that no reader here knows", ["acme.unknown/1"]),
        ("unmarked-transform", "a stream transform without its mark is a third party's codec", ["stream.zstd/1"]),
        ("version-2", "a later version of a codec", ["streamxf.zstd/2"]),
        ("version-65535", "the highest version that can be written", ["streamxf.zstd/65535"]),
    ]
    return [
        *(breaks("D4", name, about, _file(chain)) for name, about, chain in cases),
        breaks("D4", "encrypt-2", "a later version of encryption", _sealed(["streamxf.encrypt/2"]), HELD),
        breaks(
            "D4", "sealed", "an unknown name under a seal that is right", _sealed(["acme.unknown/1", ENCRYPT]), HELD
        ),
    ]


def _orders() -> list[Vector]:
    cases = [
        ("encrypt-twice", "encrypted twice", [ENCRYPT, ENCRYPT]),
        ("zstd-after-encrypt", "compressed after it was encrypted", [ENCRYPT, ZSTD]),
        ("lz4-after-encrypt", "compressed after a checksum after encryption", [ENCRYPT, CHECKSUM, LZ4]),
        ("floatzip-after-encrypt", "FloatZip after encryption", [ENCRYPT, "streamxf.floatzip/1"]),
    ]
    return [breaks("D6", name, about, _sealed(chain), HELD) for name, about, chain in cases]
