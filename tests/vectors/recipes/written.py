"""Files that streamxf itself wrote, at the time when their codec was new; salts and data keys were drawn at random."""

import dataclasses
import io
from typing import ClassVar

import streamxf
from streamxf import FloatZip
from streamxf.codec import BlockInfo
from tests.vectors.recipes.data import BLOCK


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


def write(codecs: list[streamxf.Codec], data: bytes) -> bytes:
    target = io.BytesIO()
    with streamxf.open(target, "wb", chain=codecs, block_size=BLOCK) as file:
        file.write(data)
    return target.getvalue()
