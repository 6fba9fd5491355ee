"""Zstandard compression by the ``zstandard`` package."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import zstandard

from streamxf.buffers import per_thread
from streamxf.codec import BlockInfo, Codec, Role
from streamxf.errors import CodecError, ParameterError

MIN_LEVEL, MAX_LEVEL = -7, 22
# Bytes; from here on a fresh result costs more, in page faults, than the detour through a stream into reused memory.
_INTO_SCRATCH = 128 * 1024
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class ZStandard(Codec):
    """Compress each block into one Zstandard frame.

    Parameters
    ----------
    level : int
        -7 (fastest) to 22 (smallest). Readers do not need it.

    Raises
    ------
    ParameterError
        If the level is out of range.
    """

    name: ClassVar[str] = "streamxf.zstd"
    role: ClassVar[Role] = "compression"

    level: int = field(default=3, metadata={"encode_only": True})

    def __post_init__(self) -> None:
        if type(self.level) is not int or not MIN_LEVEL <= self.level <= MAX_LEVEL:
            raise ParameterError(
                f"ZStandard(level={self.level!r}): the level is a whole number from {MIN_LEVEL} to {MAX_LEVEL}"
            )

    def encode(self, block: memoryview, info: BlockInfo) -> bytes | memoryview:
        compressor = per_thread(_compressor, self.level)
        if len(block) < _INTO_SCRATCH:
            return compressor.compress(block)
        out = info.scratch(len(block) + (len(block) >> 8) + 1)  # ZSTD_COMPRESSBOUND, and a byte to meet the end with
        return out[: _compress_into(compressor, block, out)]

    def decode(self, block: memoryview, info: BlockInfo) -> bytes:
        size = _declared_size(block)
        if size > info.limit:
            raise CodecError(f"zstd frame declares {size} bytes, {info.limit} are allowed here")
        try:
            return _decompress(block, size)
        except zstandard.ZstdError as error:
            raise CodecError(f"zstd frame is damaged: {error}") from error


def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)


def _compress_into(compressor: zstandard.ZstdCompressor, block: memoryview, out: memoryview) -> int:
    size = 0
    with compressor.stream_reader(block, size=len(block), read_size=len(block)) as frame:
        while written := frame.readinto(out[size:]):
            size += written
    return size


def _decompress(block: memoryview, size: int) -> bytes:
    decompressor = per_thread(zstandard.ZstdDecompressor)
    if size:
        return decompressor.decompress(block, allow_extra_data=False)
    # decompress() returns at once when a frame declares no content, and never looks at the rest of it
    stream = decompressor.decompressobj()
    data = stream.decompress(block)
    if data or not stream.eof or stream.unused_data:
        raise CodecError("zstd frame that declares no content is truncated, or something follows it")
    return data


def _declared_size(block: memoryview) -> int:
    if bytes(block[:4]) != _FRAME_MAGIC:
        raise CodecError("not a zstd frame")
    try:
        frame = zstandard.get_frame_parameters(block)
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd frame header is damaged: {error}") from error
    if frame.dict_id:
        raise CodecError("zstd frame asks for a dictionary; streamxf uses none")
    if frame.content_size >= zstandard.CONTENTSIZE_ERROR:
        raise CodecError("zstd frame does not declare its size")
    return int(frame.content_size)
