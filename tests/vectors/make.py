"""Made the files in v1. A file that is there is never made again: later versions must read these very bytes.

``python tests/vectors/make.py FOLDER`` makes what the folder lacks. In an empty one that shows
how such files come about. Salts and data keys are drawn at random, so the files differ from run to run; what they hold
does not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard
from streamxf.codec import BlockInfo

KEY = bytes(range(32))
SECOND_KEY = bytes(range(32, 64))
BLOCK = 1 << 16


def payload(size: int) -> bytes:
    """Bytes that anybody can make again: SHA-256 in counter mode and text, by turns of 1 KiB."""
    out = bytearray()
    number = 0
    while len(out) < size:
        noise = b"".join(hashlib.sha256(b"%d %d" % (number, part)).digest() for part in range(32))
        out += noise if number % 2 else (b"line %d of a text. " % number * 64)[:1024]
        number += 1
    return bytes(out[:size])


def draws() -> Iterator[int]:
    """Numbers of 128 bits: the halves of SHA-256 in counter mode, little-endian."""
    number = 0
    while True:
        digest = hashlib.sha256(b"draw %d" % number).digest()
        yield int.from_bytes(digest[:16], "little")
        yield int.from_bytes(digest[16:], "little")
        number += 1


def noise(size: int) -> bytes:
    """The draws themselves."""
    drawn = draws()
    return b"".join(next(drawn).to_bytes(16, "little") for _ in range(-(-size // 16)))[:size]


def numbers(size: int, width: int, mantissa: int, *, outside: int = 0, row: int = 0) -> bytes:
    """`size` bytes of little-endian floats of `width` bytes, of which `mantissa` bits are noise.

    An exponent is 120 (13 in 5 bits), less the trailing zeros of a draw, so that each value is half as frequent as the
    one above it. Each `outside`-th number has one that may be anything. With `row`, rows of so many numbers and their
    columns have scales of their own.
    """
    drawn = draws()
    bits = 8 * width - 1 - mantissa
    top = 13 if bits == 5 else 120
    scale, scales = 0, [next(drawn) % 12 for _ in range(row)]
    out = bytearray()
    for number in range(-(-size // width)):
        draw = next(drawn)
        halves = draw >> 100 | 1 << 7
        exponent = top - ((halves & -halves).bit_length() - 1)
        if row:
            scale = scale if number % row else next(drawn) % 20
            exponent += scale + scales[number % row]
        if outside and number % outside == outside - 1:
            exponent = (draw >> 80) % (1 << bits)
        sign = draw >> 64 & 1
        value = sign << bits + mantissa | exponent << mantissa | draw % (1 << mantissa)
        out += value.to_bytes(width, "little")
    return bytes(out[:size])


def integers(size: int) -> bytes:
    """Numbers of 2 bytes from 1000 to 1511."""
    drawn = draws()
    return b"".join((1000 + next(drawn) % 512).to_bytes(2, "little") for _ in range(size // 2))


def rows_of_zeros(size: int) -> bytes:
    """Floats of 4 bytes, in rows of 400 bytes of which every second is zero."""
    dense = numbers(size, 4, 23)
    return b"".join(bytes(400) if at // 400 % 2 else dense[at : at + 400] for at in range(0, size, 400))[:size]


class Told(FloatZip):
    """FloatZip that is told what streamxf's DCP writer tells it about a tensor."""

    row: ClassVar[int | None] = None

    def encode(self, block: memoryview, info: BlockInfo) -> memoryview:
        stream = dataclasses.replace(info.stream, dtype="float32", row=self.row)
        return super().encode(block, dataclasses.replace(info, stream=stream))


class ToldOfRows(Told):
    """FloatZip that is told of a matrix, too."""

    row: ClassVar[int | None] = 128


BF16, FP16, FP32, FP64 = (2, 7), (2, 10), (4, 23), (8, 52)

VECTORS = [
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
    ("full-three-blocks", [ZStandard(3), Checksum(), Encrypt(SECOND_KEY)], payload(2 * BLOCK + 77), SECOND_KEY),
    ("full-block-edge", [LZ4(9), Encrypt(KEY), Checksum("sha256")], payload(2 * BLOCK), KEY),
    ("six-codecs", [Checksum(), LZ4(), ZStandard(1), Checksum("sha256"), Encrypt(KEY), Checksum()], payload(3000), KEY),
    ("floatzip-empty", [FloatZip()], b"", None),
    ("floatzip-stored", [FloatZip()], noise(1000), None),
    ("floatzip-text", [FloatZip()], b"".join(b"line %d of a text. " % number for number in range(500)), None),
    ("floatzip-text-and-noise", [FloatZip()], payload(5000), None),
    ("floatzip-integers", [FloatZip()], integers(10_000), None),
    ("floatzip-bf16-odd", [FloatZip()], numbers(10_002, *BF16) + b"\x01", None),
    ("floatzip-bf16-phase", [FloatZip()], b"\x01" + numbers(10_000, *BF16), None),
    ("floatzip-fp16", [FloatZip()], numbers(10_000, *FP16), None),
    ("floatzip-fp32-outside", [FloatZip()], b"\x01\x02\x03" + numbers(10_001, *FP32, outside=300), None),
    ("floatzip-fp32-zeros", [FloatZip()], rows_of_zeros(10_000), None),
    ("floatzip-fp64-phase", [FloatZip()], b"\x01\x02\x03\x04\x05" + numbers(20_000, *FP64), None),
    ("floatzip-rows", [Told()], numbers(40_000, *FP32, row=128), None),
    ("floatzip-columns", [ToldOfRows()], numbers(40_004, *FP32, row=128), None),
    ("floatzip-blocks", [FloatZip()], numbers(BLOCK, *BF16) + bytes(BLOCK) + numbers(7777, *FP32), None),
    ("floatzip-full", [FloatZip(), Checksum(), Encrypt(KEY)], numbers(10_000, *BF16), KEY),
    ("floatzip-full-blocks", [FloatZip(), Checksum(), Encrypt(SECOND_KEY)], numbers(BLOCK + 77, *BF16), SECOND_KEY),
]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "vectors.json"
    made = {entry["file"]: entry for entry in json.loads(index.read_text())} if index.exists() else {}
    listed = [made.get(f"{name}.bin") or make(folder, name, *rest) for name, *rest in VECTORS]
    index.write_text(json.dumps(listed, indent=2) + "\n")


def make(folder: Path, name: str, codecs: list[streamxf.Codec], data: bytes, key: bytes | None) -> dict[str, Any]:
    path = folder / f"{name}.bin"
    with streamxf.open(path, "wb", chain=codecs, block_size=BLOCK) as file:
        file.write(data)
    return {
        "file": path.name,
        "key": key.hex() if key else None,
        "chain": [codec.descriptor().bound for codec in codecs],
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
