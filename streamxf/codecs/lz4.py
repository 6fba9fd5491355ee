"""LZ4 compression by the ``lz4`` package: raw blocks, because the container already knows sizes and checks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import lz4.block

from streamxf.codec import BlockInfo, Codec, Role
from streamxf.errors import CodecError, ParameterError

MIN_LEVEL, MAX_LEVEL = -64, 12
# Bytes beyond the limit: LZ4 takes the end of the memory for the block's, near which it allows less. Whether a block
# passes must not depend on how much memory a reader has for it.
_ROOM = 16


@dataclass(frozen=True)
class LZ4(Codec):
    """Compress each block into one raw LZ4 block.

    Parameters
    ----------
    level : int
        0 is LZ4's default; 1 to 12 compress more (LZ4 HC); -1 to -64 are faster (acceleration). Readers do not need it.

    Raises ParameterError if the level is out of range.
    """

    name: ClassVar[str] = "streamxf.lz4"
    role: ClassVar[Role] = "compression"

    level: int = field(default=0, metadata={"encode_only": True})

    def __post_init__(self) -> None:
        if type(self.level) is not int or not MIN_LEVEL <= self.level <= MAX_LEVEL:
            raise ParameterError(
                f"LZ4(level={self.level!r}): the level must be a whole number from {MIN_LEVEL} to {MAX_LEVEL}"
            )

    def encode(self, block: memoryview, info: BlockInfo) -> bytes:
        if self.level > 0:
            data = lz4.block.compress(block, mode="high_compression", compression=self.level, store_size=False)
        elif self.level < 0:
            data = lz4.block.compress(block, mode="fast", acceleration=1 - self.level, store_size=False)
        else:
            data = lz4.block.compress(block, store_size=False)
        return bytes(data)

    def decode(self, block: memoryview, info: BlockInfo) -> bytes:
        try:
            data = bytes(lz4.block.decompress(block, uncompressed_size=info.limit + _ROOM))
        except lz4.block.LZ4BlockError as error:
            raise CodecError(f"LZ4 block is damaged, or holds more than the {info.limit} bytes allowed here") from error
        if len(data) > info.limit:
            raise CodecError(f"LZ4 block holds more than the {info.limit} bytes allowed here")
        return data
