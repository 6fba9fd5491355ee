"""The header's chain: descriptors that are not well formed, unknown or out of order."""

import struct
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c

from tests.sealing import container, keyed, plain, zstd
from tests.vectors.recipes.data import payload

DATA = payload(100)
ZSTD, LZ4, CHECKSUM = "streamxf.zstd/1", "streamxf.lz4/1", "streamxf.checksum/1"


def file(chain: Sequence[str]) -> bytes:
    return plain(container(chain, [zstd(DATA)], len(DATA))).pack()


def sealed(chain: Sequence[str]) -> bytes:
    return keyed(chain, [DATA], len(DATA)).pack()


def chains() -> dict[str, Any]:
    """The chain as a whole."""
    data = DATA
    for _ in range(8):
        data += struct.pack("<I", crc32c(data))
    return locals()
