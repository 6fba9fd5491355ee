"""Zstandard compression by the ``zstandard`` package; and a frame of declared size, for what is stored as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from streamxf.buffers import borrowed
from streamxf.codec import BlockInfo, Codec, Role
from streamxf.errors import CodecError, ParameterError, is_exhausted
from streamxf.lazy import zstandard

MIN_LEVEL, MAX_LEVEL = -7, 22
# Bytes; from here on a fresh result costs more, in page faults, than the detour through a stream into reused memory.
INTO_SCRATCH = 128 * 1024
MAX_WINDOW = 1 << 27  # bytes; streaming decoders refuse more by default, and no frame of a block needs it
_RAW_BLOCK = 1 << 17  # bytes, the most
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"


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
        with borrowed(compressor, self.level) as context:
            if len(block) < INTO_SCRATCH:
                return context.compress(block)
            out = info.scratch(bound(len(block)))
            return out[: compress_into(context, block, out)]

    def decode(self, block: memoryview, info: BlockInfo) -> bytes:
        size = declared_size(block)
        if size > info.limit:
            raise CodecError(f"zstd frame declares {size} bytes, {info.limit} are allowed here")
        return decompress(block, size)


def compressor(level: int) -> zstandard.ZstdCompressor:
    """A compressor for frames that `decompress` takes."""
    return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)


def bound(size: int) -> int:
    """Bytes of memory that `compress_into` needs: zstd's own bound, and room to meet the end in."""
    return size + (size >> 8) + 128


def compress_into(context: zstandard.ZstdCompressor, data: memoryview, out: memoryview) -> int:
    """Compress `data` into one frame at the start of `out`, which has at least `bound` bytes; return its size."""
    if len(data) < INTO_SCRATCH:
        frame = context.compress(data)
        out[: len(frame)] = frame
        return len(frame)
    size = 0
    with context.stream_reader(data, size=len(data), read_size=len(data)) as stream:
        while written := stream.readinto(out[size:]):
            size += written
    return size


def stored(data: bytes) -> bytes:
    """A frame that holds `data` as it is, however well it would compress (RFC 8878, 3.1.1)."""
    return _FRAME_MAGIC + b"\xe0" + len(data).to_bytes(8, "little") + _raw_blocks(data)  # of one segment


def _raw_blocks(data: bytes) -> bytes:
    """Blocks that end a frame."""
    blocks = [data[at : at + _RAW_BLOCK] for at in range(0, len(data) or 1, _RAW_BLOCK)]
    last = len(blocks) - 1
    return b"".join((len(b) << 3 | (n == last)).to_bytes(3, "little") + b for n, b in enumerate(blocks))


def compress_to(data: bytes, least: int) -> bytes:
    """A frame of `data`, of at least so many bytes: the end of what compresses better is in it as it is, or all."""
    packed, rest = compressor(3).compress(data), 0
    while len(packed) < least:
        if (rest := rest + least - len(packed)) >= len(data):
            return stored(data)
        stream = compressor(3).compressobj(size=len(data))
        packed = stream.compress(data[:-rest]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        packed += _raw_blocks(data[-rest:])
    return packed


def decompress(frame: memoryview, size: int) -> bytes:
    """Decompress a frame whose `size` was checked. Raises CodecError if it is damaged, cut or followed by something."""
    try:
        if size:
            with borrowed(zstandard.ZstdDecompressor) as decompressor:
                return decompressor.decompress(frame, allow_extra_data=False)
        # decompress() returns at once when a frame declares no content, and never looks at the rest of it
        stream = zstandard.ZstdDecompressor().decompressobj()
        data = stream.decompress(frame)
    except zstandard.ZstdError as error:
        if is_exhausted(error):
            raise MemoryError(str(error)) from error
        raise CodecError(f"zstd frame is damaged: {error}") from error
    if data or not stream.eof or stream.unused_data:
        raise CodecError("zstd frame without content is truncated, or data follows it")
    return data


def declared_size(frame: memoryview) -> int:
    """The content size that a frame declares; CodecError if it has none, or asks for more than the format allows."""
    if bytes(frame[:4]) != _FRAME_MAGIC:
        raise CodecError("not a zstd frame")
    try:
        parameters = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd frame header is damaged: {error}") from error
    if parameters.dict_id:
        raise CodecError("zstd frame asks for a dictionary; streamxf uses none")
    if parameters.window_size > MAX_WINDOW:
        raise CodecError(f"zstd frame has a window of {parameters.window_size} bytes, {MAX_WINDOW} are allowed")
    if parameters.content_size >= zstandard.CONTENTSIZE_ERROR:
        raise CodecError("zstd frame does not declare its size")
    return int(parameters.content_size)
