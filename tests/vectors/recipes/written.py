"""Files that streamxf itself wrote, at the time when their codec was new; salts and data keys were drawn at random."""

from __future__ import annotations

import dataclasses
import io
from typing import ClassVar

import streamxf
from streamxf import LZ4, Checksum, Encrypt, FloatZip, ZStandard
from streamxf.codec import BlockInfo
from tests.sealing import KEY, OTHER_KEY
from tests.vectors.recipes.data import BLOCK, integers, noise, numbers, payload, rows_of_zeros
from tests.vectors.recipes.vector import Made


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

_FILES: dict[str, tuple[list[streamxf.Codec], bytes]] = {
    "empty": ([], payload(0)),
    "none": ([], payload(100)),
    "zstd": ([ZStandard(3)], payload(5000)),
    "zstd-fast-two-blocks": ([ZStandard(-7)], payload(BLOCK + 1)),
    "lz4": ([LZ4()], payload(5000)),
    "lz4-high": ([LZ4(12)], payload(5000)),
    "checksum-crc32c": ([Checksum()], payload(1000)),
    "checksum-sha256": ([Checksum("sha256")], payload(1000)),
    "encrypt": ([Encrypt(KEY)], payload(1000)),
    "encrypt-empty": ([Encrypt(KEY)], payload(0)),
    "full": ([ZStandard(3), Checksum(), Encrypt(KEY)], payload(5000)),
    "full-three-blocks": ([ZStandard(3), Checksum(), Encrypt(OTHER_KEY)], payload(2 * BLOCK + 77)),
    "full-block-edge": ([LZ4(9), Encrypt(KEY), Checksum("sha256")], payload(2 * BLOCK)),
    "six-codecs": ([Checksum(), LZ4(), ZStandard(1), Checksum("sha256"), Encrypt(KEY), Checksum()], payload(3000)),
    "floatzip-empty": ([FloatZip()], b""),
    "floatzip-stored": ([FloatZip()], noise(1000)),
    "floatzip-text": ([FloatZip()], b"".join(b"line %d of a text. " % number for number in range(500))),
    "floatzip-text-and-noise": ([FloatZip()], payload(5000)),
    "floatzip-integers": ([FloatZip()], integers(10_000)),
    "floatzip-bf16-odd": ([FloatZip()], numbers(10_002, *BF16) + b"\x01"),
    "floatzip-bf16-phase": ([FloatZip()], b"\x01" + numbers(10_000, *BF16)),
    "floatzip-fp16": ([FloatZip()], numbers(10_000, *FP16)),
    "floatzip-fp32-outside": ([FloatZip()], b"\x01\x02\x03" + numbers(10_001, *FP32, outside=300)),
    "floatzip-fp32-zeros": ([FloatZip()], rows_of_zeros(10_000)),
    "floatzip-fp64-phase": ([FloatZip()], b"\x01\x02\x03\x04\x05" + numbers(20_000, *FP64)),
    "floatzip-rows": ([Told()], numbers(40_000, *FP32, row=128)),
    "floatzip-columns": ([ToldOfRows()], numbers(40_004, *FP32, row=128)),
    "floatzip-blocks": ([FloatZip()], numbers(BLOCK, *BF16) + bytes(BLOCK) + numbers(7777, *FP32)),
    "floatzip-full": ([FloatZip(), Checksum(), Encrypt(KEY)], numbers(10_000, *BF16)),
    "floatzip-full-blocks": ([FloatZip(), Checksum(), Encrypt(OTHER_KEY)], numbers(BLOCK + 77, *BF16)),
}


def _write(codecs: list[streamxf.Codec], data: bytes) -> bytes:
    target = io.BytesIO()
    with streamxf.open(target, "wb", chain=codecs, block_size=BLOCK) as file:
        file.write(data)
    return target.getvalue()


def vectors() -> Made:
    """All of them."""
    return {f"written-{name}": _write(codecs, data) for name, (codecs, data) in _FILES.items()}
