"""Containers as they stand in data files: their identity, and how it fits what they hold."""

import struct
from typing import Any

from tests.forge import BOUND, HASHED, KEYED, PUBLISHED, Parts, identity_of
from tests.sealing import ENCRYPT, container, encrypted, zstd
from tests.vectors.recipes.data import BLOCK, lines, payload

ZSTD = "streamxf.zstd/1"
ITEM = BOUND | PUBLISHED
OBJECT, TENSOR, FRAMED = 1, 2, 3
DATA = payload(48)
NAME = "layers.0.weight"
SHARD = (NAME, TENSOR, "float32", (2, 0), (4, 3), (6, 3))


def bound(identity: bytes, flags: int = ITEM, data: bytes = DATA, chain: tuple[str, ...] = (ZSTD,)) -> Parts:
    return container(chain, [zstd(data)], len(data), flags=flags, identity=identity)


def three() -> Parts:
    data = _LARGE
    blocks = [zstd(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return container([ZSTD], blocks, len(data), flags=ITEM | HASHED, identity=identity_of("o"))


_LARGE = lines(2 * BLOCK + 5)


def tensor_of(kind: int = TENSOR, dtype: str = "float32") -> tuple[object, ...]:
    return (NAME, kind, dtype, *SHARD[3:])


def tensors() -> dict[str, Any]:
    tensor = identity_of(*SHARD)
    return locals()


def hashed() -> dict[str, Any]:
    made = three()
    stored = made.container()
    table = [stored[len(stored) - 20 - 108 + 36 * number :][:36] for number in range(3)]
    hashes = [entry[4:] for entry in table]
    lengths = tuple(struct.unpack("<I", entry[:4])[0] for entry in table)
    return locals()


def keyed() -> dict[str, Any]:
    identity = identity_of(*SHARD)
    made = encrypted(container([ENCRYPT], [DATA], len(DATA), flags=KEYED | ITEM, identity=identity))
    return locals()
