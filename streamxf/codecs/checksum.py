"""An end-to-end checksum at its place in the chain, besides the CRC that every container block has anyway."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import crc32c

from streamxf.codec import BlockInfo, Codec, Role
from streamxf.errors import ChecksumError, CodecError, ParameterError

_LARGE = 64 * 1024  # bytes


def crc32c_of(data: memoryview, crc: int = 0) -> int:
    """The CRC-32C of what `crc` is that of, and of `data` behind it."""
    if len(data) > _LARGE:
        from streamxf.codecs.floatzip import kernel  # and with it NumPy

        if (found := kernel.crc32c(data, crc)) is not None:  # in half of the time
            return found
    return int(crc32c.crc32c(data, crc))


_DIGESTS: dict[str, tuple[Callable[[memoryview], bytes], int]] = {
    "crc32c": (lambda data: crc32c_of(data).to_bytes(4, "little"), 4),
    "sha256": (lambda data: hashlib.sha256(data).digest(), 32),
}


@dataclass(frozen=True)
class Checksum(Codec):
    """Append a digest to each block and check it on load.

    Parameters
    ----------
    algorithm : str
        ``"crc32c"`` finds faults of storage, memory and other codecs; ``"sha256"`` is a cryptographic hash. Neither
        protects against an attacker, who can compute both; `Encrypt` does.

    Raises ParameterError if the algorithm is unknown.
    """

    name: ClassVar[str] = "streamxf.checksum"
    role: ClassVar[Role] = "checksum"

    algorithm: str = "crc32c"

    def __post_init__(self) -> None:
        if type(self.algorithm) is not str or self.algorithm not in _DIGESTS:
            raise ParameterError(
                f"Checksum(algorithm={self.algorithm!r}): the algorithm must be one of {', '.join(_DIGESTS)}"
            )

    def encode(self, block: memoryview, info: BlockInfo) -> memoryview:
        digest, size = _DIGESTS[self.algorithm]
        out = info.extend(block, size)
        out[len(block) :] = digest(block)
        return out

    def decode(self, block: memoryview, info: BlockInfo) -> memoryview:
        digest, size = _DIGESTS[self.algorithm]
        if len(block) < size:
            raise CodecError(f"block of {len(block)} bytes is too short to hold a {self.algorithm} digest")
        if len(block) - size > info.limit:
            raise CodecError(f"block of {len(block) - size} bytes and a digest, {info.limit} are allowed here")
        data = block[: len(block) - size]
        if digest(data) != block[len(block) - size :]:
            raise ChecksumError(f"{self.algorithm} checksum does not match")
        return data
