"""What a codec is told of a block that is the only one of its stream."""

from functools import partial

from streamxf.buffers import Scratch
from streamxf.codec import BlockInfo, StreamInfo


def info(limit: int = 1 << 16, dtype: str | None = None, row: int | None = None) -> BlockInfo:
    """With memory of its own, and `limit` for what it decodes to."""
    stream = StreamInfo(1 << 20, bytes(32), bytes(32), None, dtype, row)
    return BlockInfo(0, True, limit, None, stream, partial(Scratch().take, 0))
