"""Each byte as its difference, modulo 256, from the byte `stride` places before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamxf.codec import BlockInfo, Codec
from streamxf.errors import CodecError, ParameterError

MIN_STRIDE, MAX_STRIDE = 1, 64


@dataclass(frozen=True)
class Delta(Codec):
    """Store differences between bytes, for a compressor behind it.

    Parameters
    ----------
    stride : int
        1 to 64: bytes from one number to the next, so that equal places of neighbouring numbers meet; 8 for int64.

    Raises
    ------
    ParameterError
        If the stride is out of range.
    """

    name: ClassVar[str] = "acme.delta"
    version: ClassVar[int] = 1

    stride: int = 1

    def __post_init__(self) -> None:
        if type(self.stride) is not int or not MIN_STRIDE <= self.stride <= MAX_STRIDE:
            raise ParameterError(
                f"Delta(stride={self.stride!r}): the stride is a whole number from {MIN_STRIDE} to {MAX_STRIDE}"
            )

    def encode(self, block: memoryview, info: BlockInfo) -> memoryview:
        out = info.scratch(len(block))
        data, target = np.frombuffer(block, np.uint8), np.frombuffer(out, np.uint8)
        target[: self.stride] = data[: self.stride]
        np.subtract(data[self.stride :], data[: -self.stride], out=target[self.stride :])
        return out

    def decode(self, block: memoryview, info: BlockInfo) -> memoryview:
        if len(block) > info.limit:
            raise CodecError(f"delta block of {len(block)} bytes, {info.limit} are allowed here")
        out = info.scratch(len(block))
        data, target = np.frombuffer(block, np.uint8), np.frombuffer(out, np.uint8)
        for lane in range(min(self.stride, len(block))):
            np.add.accumulate(data[lane :: self.stride], dtype=np.uint8, out=target[lane :: self.stride])
        return out
