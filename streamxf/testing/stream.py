"""`Stream`: one codec at work on one stream, called just as a chain calls it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from streamxf.buffers import flat_view
from streamxf.codec import BlockInfo, Codec, StreamInfo
from streamxf.format.container import stage_limit

BLOCK_SIZE = 1 << 16

Data = bytes | bytearray | memoryview


def _scratch(fill: int) -> Callable[[int], memoryview]:
    """Scratch memory full of `fill`, and the same memory at every call for one block, as in a chain."""
    memory = bytearray()

    def take(size: int) -> memoryview:
        nonlocal memory
        if len(memory) < size:
            memory = bytearray([fill]) * size
        return memoryview(memory)[:size]

    return take


class Stream:
    """One stream through one codec; streams of different numbers have different salts and headers."""

    def __init__(self, codec: Codec, number: int = 0, block_size: int = BLOCK_SIZE) -> None:
        seed = number.to_bytes(8, "little")
        salt, header_digest = hashlib.sha256(b"salt" + seed).digest(), hashlib.sha256(b"header" + seed).digest()
        self.limit = stage_limit(block_size)
        # only a writer knows the dtype, so a codec that leans on it to decode fails
        self._writing = StreamInfo(block_size, salt, header_digest, "layer.weight", "bfloat16")
        self._reading = replace(self._writing, dtype=None)
        self._encoder = codec
        self._encode_state = codec.start(self._writing)
        self.read_with(codec)

    def read_with(self, codec: Codec) -> Stream:
        """Decode with another codec object from here on, as a reader does; returns the stream itself."""
        self._decoder = codec
        self._decode_state = codec.start(self._reading)
        return self

    def encode(self, block: Data, index: int = 0, last: bool = True, fill: int = 0xA5) -> memoryview:
        """Encode a block. The result is what the codec gave, not a copy."""
        info = BlockInfo(index, last, self.limit, self._encode_state, self._writing, _scratch(fill))
        return flat_view(self._encoder.encode(flat_view(block), info))

    def decode(
        self, stored: Data, index: int = 0, last: bool = True, fill: int = 0xA5, limit: int | None = None
    ) -> memoryview:
        """Decode a stored block; `limit` is by default what a codec that follows another one may return."""
        limit = self.limit if limit is None else limit
        info = BlockInfo(index, last, limit, self._decode_state, self._reading, _scratch(fill))
        return flat_view(self._decoder.decode(flat_view(stored), info))
