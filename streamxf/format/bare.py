"""Items without containers: CRCs of their bytes, piece by piece, and raw tensors; docs/format.md, "Bare items"."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import crc32c

from streamxf.descriptor import RAW
from streamxf.errors import BlockError
from streamxf.format import limits

PIECE = 2**20  # bytes that have a CRC together
CRC_BYTES = 4
MAX_BARE = (limits.MAX_PART - 2**17) // CRC_BYTES * PIECE
"""Bytes of a shard whose CRCs an index has room for, in one part: a little less than 1 TiB."""


class PieceCrcs:
    """The CRCs of an item whose bytes come one after the other, each of four bytes, little-endian; if it is `signed`,
    in the end also `digests`, the SHA-256 of each piece.
    """

    def __init__(self, *, signed: bool = False) -> None:
        self._done, self.digests = bytearray(), b""
        self._size = self._crc = 0
        self._sha256 = hashlib.sha256() if signed else None

    def add(self, data: memoryview) -> None:
        for start in range(-(self._size % PIECE), len(data), PIECE):
            part = data[max(0, start) : start + PIECE]
            self._crc = crc32c.crc32c(part, self._crc)
            if self._sha256 is not None:
                self._sha256.update(part)
            self._size += len(part)
            if self._size % PIECE == 0:
                self._end_piece()

    def finish(self) -> bytes:
        if self._size % PIECE:
            self._end_piece()
        return bytes(self._done)

    def _end_piece(self) -> None:
        self._done += self._crc.to_bytes(CRC_BYTES, "little")
        self._crc = 0
        if self._sha256 is not None:
            self.digests += self._sha256.digest()
            self._sha256 = hashlib.sha256()


def pieces_of(size: Any) -> Any:
    """How many CRCs an item of `size` bytes has; or items, of an array of sizes."""
    return -(-size // PIECE)


def check_piece(crcs: bytes, index: int, data: memoryview) -> None:
    """Raise BlockError unless `data` has the CRC of this piece."""
    if len(data) and crc32c.crc32c(data) != int.from_bytes(crcs[index * CRC_BYTES :][:CRC_BYTES], "little"):
        raise BlockError("the CRC of this MiB does not match: it is damaged", block=index)


def alignment(size: int) -> int:
    """What the place of a raw tensor of `size` bytes in its file is a multiple of."""
    return 4096 if size >= PIECE else 64


def raw_descriptor(dtype: str, shape: Sequence[int | str]) -> str:
    """What torch's own readers are given of a raw tensor."""
    return f"{RAW}/1?dtype={dtype}" + (f"&shape={'.'.join(map(str, shape))}" if shape else "")
