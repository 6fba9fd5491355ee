"""Zstandard compression by the ``zstandard`` package."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from streamxf.buffers import borrowed
from streamxf.codec import BlockInfo, Codec, Role
from streamxf.codecs import frames
from streamxf.errors import CodecError, ParameterError

MIN_LEVEL, MAX_LEVEL = -7, 22


@dataclass(frozen=True)
class ZStandard(Codec):
    """Compress each block into one Zstandard frame.

    Parameters
    ----------
    level : int
        -7 (fastest) to 22 (smallest). Readers do not need it.

    Raises ParameterError if the level is out of range.
    """

    name: ClassVar[str] = "streamxf.zstd"
    role: ClassVar[Role] = "compression"

    level: int = field(default=3, metadata={"encode_only": True})

    def __post_init__(self) -> None:
        if type(self.level) is not int or not MIN_LEVEL <= self.level <= MAX_LEVEL:
            raise ParameterError(
                f"ZStandard(level={self.level!r}): the level must be a whole number from {MIN_LEVEL} to {MAX_LEVEL}"
            )

    def encode(self, block: memoryview, info: BlockInfo) -> bytes | memoryview:
        with borrowed(frames.compressor, self.level) as compressor:
            if len(block) < frames.INTO_SCRATCH:
                return compressor.compress(block)
            out = info.scratch(frames.bound(len(block)))
            return out[: frames.compress_into(compressor, block, out)]

    def decode(self, block: memoryview, info: BlockInfo) -> bytes:
        size = frames.declared_size(block)
        if size > info.limit:
            raise CodecError(f"zstd frame declares {size} bytes, {info.limit} are allowed here")
        return frames.decompress(block, size)
